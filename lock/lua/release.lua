-- Removes a token's place in the queue, and the lock if the token holds it; the lock goes
-- directly to the next live waiter.
--
-- KEYS: 1 lock, 2 waiters, 3 seen, 4 fence (see acquire.lua)
-- ARGV: 1 token, 2 its entry in the queue "<token>[:<metadata>]" if it may have one, or "",
--       3 settings (see acquire.lua)
-- Returns 0 the token did not hold the lock, 1 it did, 2 it did and a waiter was handed the lock
--
-- Atomic, because between comparing and deleting the lock could pass to another, and between
-- deleting and handing over a newcomer could barge in.
--
-- Without waiters, and so without the mark of them on the fence, the script ends in this file;
-- handover.lua and pass_on.lua follow it in the same script.

local mine = ARGV[1] .. ':'
local stored = redis.call('MGET', KEYS[1], KEYS[4]) -- keys of another type read as missing
if stored[2] and string.sub(stored[2], -1) ~= 'w' then
  if not stored[1] or string.sub(stored[1], 1, #mine) ~= mine then return 0 end
  return redis.call('DEL', KEYS[1])
end
