-- Gives up what a token has: its place in the queue, and the lock if it holds
-- it, which goes straight to the next live waiter.
--
-- KEYS: 1 lock, 2 waiters, 3 seen, 4 fence (see acquire.lua)
-- ARGV: 1 token, 2 waiter entry to remove or "", 3 claim ms, 4 ms to keep the
--       fence, 5 "1" where PUBLISH counts every receiver
-- Returns {1 if the token held the lock, 1 if a waiter was handed the lock}
--
-- Atomic, because between comparing and deleting the lock could pass to
-- another, and between deleting and handing over a newcomer could barge in.

local token, member = ARGV[1], ARGV[2]

local value = redis.pcall('GET', KEYS[1])
local stored = redis.pcall('GET', KEYS[4])
local queue_broken = lock_broken(redis.pcall('ZCARD', KEYS[2])) or lock_broken(redis.pcall('HLEN', KEYS[3]))
  or lock_broken(stored)

if member ~= '' and not queue_broken then lock_leave(KEYS[2], KEYS[3], member) end

local mine = token .. ':'
if type(value) ~= 'string' or string.sub(value, 1, #mine) ~= mine then return {0, 0} end

-- A stranger's key where the queue should be must not keep the lock held.
if not queue_broken
  and lock_hand_over(nil, stored, lock_now(), ARGV[3], ARGV[4], ARGV[5] == '1') then
  return {1, 1}
end
redis.call('DEL', KEYS[1])
return {1, 0}
