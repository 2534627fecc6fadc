-- Fragment of the scripts that take, release and inspect a lock: minting of
-- fencing tokens and the direct handover to a waiter. It defines local
-- functions only.

-- The clock of Redis in microseconds: exact in a Lua number until the year 2255.
local function lock_now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- The reply of a script if a read failed: {-1} for a key of another type, the
-- error itself otherwise, nil if the read succeeded.
local function lock_broken(reply)
  if type(reply) ~= 'table' or not reply.err then return nil end
  if string.find(reply.err, 'WRONGTYPE', 1, true) then return {-1, 0, 0, 0} end
  return reply
end

-- The next fencing token. It exceeds the last one stored, and the clock keeps it
-- rising if all stored data was lost. A stored value that is no number, or above the
-- exact range of numbers, was not written here and is ignored.
local function lock_mint(stored, now_us)
  local last = tonumber(string.match(stored or '', '^(%d+)w?$') or '0')
  if last >= now_us and last < 9007199254740000 then return last + 1 end
  return now_us
end

-- The TTL of the last fencing token: a day. After that only the clock of Redis
-- keeps tokens rising.
local lock_fence_ms = 86400000

-- Stores that `token` holds the lock for ttl_ms with this fencing token, and
-- whether there are waiters, for the fast paths of the scripts.
local function lock_set(lock_key, waiters_key, fence_key, token, meta, fence, ttl_ms)
  local text = string.format('%.0f', fence)
  redis.call('SET', lock_key, token .. ':' .. text .. meta, 'PX', ttl_ms)
  if redis.call('EXISTS', waiters_key) == 1 then text = text .. 'w' end
  redis.call('SET', fence_key, text, 'PX', lock_fence_ms)
end

-- Marks that there are waiters, unless it is marked already. The first lock_set
-- after the queue is empty removes the mark.
local function lock_mark(fence_key, stored)
  if stored and string.sub(stored, -1) == 'w' then return end
  redis.call('SET', fence_key, (stored or '0') .. 'w', 'PX', lock_fence_ms)
end

local function lock_leave(waiters_key, seen_key, member)
  redis.call('ZREM', waiters_key, member)
  redis.call('HDEL', seen_key, member)
end

-- Splits a waiter's entry "<manager>.<random>[:<metadata>]" into its manager,
-- its token and ":<metadata>" or "". A foreign entry has manager "".
local function lock_split(member)
  local colon = string.find(member, ':', 1, true) or #member + 1
  local token = string.sub(member, 1, colon - 1)
  local dot = string.find(token, '.', 1, true) or 1
  return string.sub(token, 1, dot - 1), token, string.sub(member, colon)
end

-- How many more dead waiters this run may remove, so that it stays short.
local lock_removals = 1024

-- Chooses the waiter that gets the free lock: the first live one. Dead ones are
-- removed, up to the limit of the run. `news` is sent to the chosen waiter on the
-- channel of its process, unless that process polls (its name begins with "~").
-- If the number of receivers is reliable (one Redis, not a cluster), a waiter
-- whose process does not listen is skipped in favour of the next that does, so
-- dead processes cost nothing; it keeps its place in case it is reconnecting.
-- `own` is chosen without a message, because its owner reads the script's reply.
-- It is '' for a caller that does not wait, and is then chosen if no waiter would
-- get the message. A user without permission to publish does not hand the lock to
-- a listener, which would not be notified: the lock stays free for the first
-- waiter that asks, which is `own` if there is one.
local function lock_choose(waiters_key, seen_key, own, news, now_us, trust_receivers)
  local now_ms = math.floor(now_us / 1000)
  local index, deaf = 0, nil
  while true do
    local member = redis.call('ZRANGE', waiters_key, index, index)[1]
    if not member or index > 64 then return own == '' and own or deaf end
    if member == own then return member end
    local alive_until = redis.call('HGET', seen_key, member)
    if not alive_until or (tonumber(alive_until) or 0) < now_ms then
      if lock_removals == 0 then return nil end
      lock_removals = lock_removals - 1
      lock_leave(waiters_key, seen_key, member)
    else
      local manager, token = lock_split(member)
      if string.sub(manager, 1, 1) == '~' then return member end
      local receivers = redis.pcall('PUBLISH', 'lock:wake:' .. manager, token .. ' ' .. news)
      if type(receivers) ~= 'number' then return own ~= '' and own or nil end
      if receivers > 0 or not trust_receivers then return member end
      deaf = deaf or member
      index = index + 1
    end
  end
end

-- Gives the free lock to the first live waiter for claim_ms. Returns that
-- waiter's entry; `own` when it is next, to be stored by the caller with its
-- full TTL; nil without waiters.
local function lock_hand_over(lock_key, waiters_key, seen_key, fence_key, own, stored, now_us, claim_ms, trust_receivers)
  local fence = lock_mint(stored, now_us)
  local news = string.format('%.0f %.0f ', fence, now_us) .. claim_ms
  local member = lock_choose(waiters_key, seen_key, own, news, now_us, trust_receivers)
  if not member or member == own then return member end
  local _, token, meta = lock_split(member)
  lock_leave(waiters_key, seen_key, member)
  lock_set(lock_key, waiters_key, fence_key, token, meta, fence, claim_ms)
  return member
end
