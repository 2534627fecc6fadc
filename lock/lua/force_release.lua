-- Takes the lock from its holder and hands it to the next live waiter.
--
-- KEYS: 1 lock, 2 waiters, 3 seen, 4 fence (see calls.lua), 5 forced: token
--       of the former holder, a space, the reason
-- ARGV: 1 reason, 2 flags: "r" if PUBLISH counts every receiver, 3 claim
--       ms, 4 ms to keep the reason
-- Returns {1, value the key held, 1 if a waiter was handed the lock}
--         {0, "", 0} the lock is free
--         {-1, "", 0} one of the keys has another type
--
-- Atomic, because the holder that is read must be the one that loses the lock.
-- handover.lua precedes it in the same script.

local value = redis.pcall('GET', KEYS[1])
local stored = redis.pcall('GET', KEYS[4])
local bad = lock_broken(value)
if bad then return bad[1] == -1 and {-1, '', 0} or bad end
if not value then return {0, '', 0} end

local manager, token = lock_split(value)

-- Its process is notified at once if it listens, and otherwise at its next renewal.
if not lock_broken(redis.pcall('GET', KEYS[5])) then
  redis.call('SET', KEYS[5], token .. ' ' .. ARGV[1], 'PX', ARGV[4])
end
if manager ~= '' and string.sub(manager, 1, 1) ~= '~' then
  redis.pcall('PUBLISH', 'lock:wake:' .. manager, '! ' .. token .. ' ' .. ARGV[1])
end

local queue_broken = lock_broken(redis.pcall('ZCARD', KEYS[2])) or lock_broken(redis.pcall('HLEN', KEYS[3]))
  or lock_broken(stored)
if not queue_broken
  and lock_hand_over(KEYS[1], KEYS[2], KEYS[3], KEYS[4], nil, stored, lock_now(), ARGV[3], ARGV[2] == 'r') then
  return {1, value, 1}
end
redis.call('DEL', KEYS[1])
return {1, value, 0}
