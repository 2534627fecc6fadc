-- Takes the lock, or keeps a place in its queue. One script serves the first try, joining
-- the queue, the keep-alive while waiting, the claim after a handover and the repeat after a
-- lost reply: with one token it may run any number of times.
--
-- KEYS: 1 lock, 2 waiters (sorted set, score = arrival), 3 seen (hash, waiter -> alive
--       until, ms), 4 fence (last fencing token minted, and a "w" after it while there may
--       be waiters)
-- ARGV: 1 token "<manager>.<random>", 2 ":<metadata>" or "", 3 TTL ms, 4 settings, which only
--       contended locks read: "w" to wait in the queue, "r" if PUBLISH counts every receiver,
--       and after a space four numbers: ms a waiter counts as alive, claim ms, ms granted to
--       a key that was found without TTL, ms to keep an abandoned queue
-- Returns fence as a string: held, and the fence is also the clock in us
--         {1, fence, 0, now} held, now being the clock in microseconds
--         {0, ms until the lock may expire, 1 if it had no TTL, now} taken
--         {-1, 0, 0, 0} one of the keys has another type
--
-- Atomic, because "free, and no waiter before us" must still be true when the lock is
-- stored, and the fencing token must rise in the order of holding.
--
-- This file is the fast path of an uncontended lock, kept short because nearly every call ends
-- here. It compares strings of equally many digits; a fence with the mark of a waiter is
-- longer. handover.lua and queue.lua follow it in the same script.

local clock = redis.call('TIME')
local fence = clock[1] .. string.sub('000000', #clock[2] + 1) .. clock[2]
if redis.call('SET', KEYS[1], ARGV[1] .. ':' .. fence .. ARGV[2], 'NX', 'PX', ARGV[3]) then
  -- The fence is kept for a day (see handover.lua).
  local last = redis.pcall('SET', KEYS[4], fence, 'PX', 86400000, 'GET')
  -- Without a last token it is not known whether there are waiters, so check.
  if (not last and redis.call('EXISTS', KEYS[2]) == 0)
    or (type(last) == 'string' and #last == #fence and last < fence) then
    return fence
  end
  -- There are waiters, the clock was set back, or a key has a foreign value or type:
  -- queue.lua decides, from the previous state.
  redis.call('DEL', KEYS[1])
  if type(last) == 'string' then redis.call('SET', KEYS[4], last, 'PX', 86400000) end
end
