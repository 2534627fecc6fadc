-- Takes locks, keeps places in their queues, and releases locks: any number of calls of
-- one manager in one run, because running a script costs as much as what it does here.
-- An acquire serves the first try, joining the queue, the keep-alive while waiting, the
-- claim after a handover and the repeat after a lost reply: with one token it may run any
-- number of times. A release removes a token's place in the queue, and the lock if the
-- token holds it; the lock goes directly to the next live waiter.
--
-- KEYS: for each call 1 lock, 2 waiters (sorted set, score = arrival), 3 seen (hash, waiter
--       -> alive until, ms), 4 fence (last fencing token minted, and a "w" after it while
--       there may be waiters)
-- ARGV: 1 "r" if PUBLISH counts every receiver, or ""
--       2 four numbers: ms a waiter counts as alive, claim ms, ms granted to a key that was
--       found without TTL, ms to keep an abandoned queue
--       for each call 1 what: "t" to try, "w" to wait in the queue, "d" to release
--                     2 token "<manager>.<random>"
--                     3 ":<metadata>" or ""; for a release the waiter's entry
--                       "<token>[:<metadata>]" if it may have a place in the queue, or ""
--                     4 TTL ms; not read by a release
-- Returns for each acquire
--           fence as a string: held, and the fence is also the clock in us
--           {1, fence, 0, now} held, now being the clock in microseconds
--           {0, ms until the lock may expire, 1 if it had no TTL, now} taken
--           {-1, 0, 0, 0} one of the keys has another type
--         for each release 0 the token did not hold the lock, 1 it did, 2 it did and a
--           waiter was handed the lock
--         for a call that failed {text of the error}; it does not end the run. An error
--           reply in the list would: go-redis stops reading the list at most of them
-- Fails as a whole, like any command, if the only call fails or if no call can write.
--
-- Atomic, because "free, and no waiter before us" must still be true when the lock is
-- stored, the fencing token must rise in the order of holding, the lock could pass to
-- another between comparing and deleting, and a newcomer could barge in between deleting
-- and handing over.
--
-- An uncontended lock needs only lock_call, which is kept short because nearly every call
-- ends in it. It compares strings of equally many digits; a fence with the mark of a waiter
-- is longer. The functions of handover.lua, queue.lua and pass_on.lua, which precede it in
-- the same script inside lock_rare, are made when a call needs them.

local now, queue, pass_on
local function lock_call(i)
  local k, a = 4 * i - 3, 4 * i - 1
  local lock_key, fence_key = KEYS[k], KEYS[k + 3]
  local what, token, text, ttl_ms = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  local reply
  if what == 'd' then
    local stored = redis.call('MGET', lock_key, fence_key) -- keys of another type read as missing
    if text == '' and stored[2] and string.sub(stored[2], -1) ~= 'w' then
      reply = 0
      if stored[1] and string.sub(stored[1], 1, #token + 1) == token .. ':' then
        redis.call('DEL', lock_key)
        reply = 1
      end
    end
  else
    if not now then
      local clock = redis.call('TIME')
      now = clock[1] .. string.sub('000000', #clock[2] + 1) .. clock[2]
    end
    if redis.call('SET', lock_key, token .. ':' .. now .. text, 'NX', 'PX', ttl_ms) then
      -- The fence is kept for a day (see handover.lua).
      local last = redis.pcall('SET', fence_key, now, 'PX', 86400000, 'GET')
      -- Without a last token it is not known whether there are waiters, so check.
      if (not last and redis.call('EXISTS', KEYS[k + 1]) == 0)
        or (type(last) == 'string' and #last == #now and last < now) then
        reply = now
      else
        -- There are waiters, the clock was set back, or a key has a foreign value or type:
        -- queue.lua decides, from the previous state.
        redis.call('DEL', lock_key)
        if type(last) == 'string' then redis.call('SET', fence_key, last, 'PX', 86400000) end
      end
    end
  end
  if not reply then
    if not queue then queue, pass_on = lock_rare() end
    local rest = what == 'd' and pass_on or queue
    reply = rest(lock_key, KEYS[k + 1], KEYS[k + 2], fence_key, what == 'w', token, text, tonumber(ttl_ms))
  end
  return reply
end

local replies = {}
for i = 1, #KEYS / 4 do
  local ok, reply = pcall(lock_call, i)
  if not ok and type(reply) ~= 'table' then
    -- The pcall of Redis returns the text of an error. That of a Lua error has no code.
    local text = tostring(reply)
    reply = {err = string.find(text, '^%u+ ') and text or 'ERR ' .. text}
  end
  if type(reply) == 'table' and reply.err then
    -- A server that is not a master refuses the first write, so nothing was changed. The client
    -- must see this error, because it then repeats the command on another connection.
    if #KEYS == 4 or string.find(reply.err, '^READONLY') or string.find(reply.err, '^MASTERDOWN') then
      error(reply, 0)
    end
    reply = {reply.err}
  end
  replies[i] = reply
end
return replies
