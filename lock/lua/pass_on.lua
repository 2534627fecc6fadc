-- The rest of a release (see release.lua): there may be waiters, of which the token may be one.

local lock_key, waiters_key, seen_key, fence_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local member = ARGV[2]
local value = redis.pcall('GET', lock_key)
local last = redis.pcall('GET', fence_key)
local queue_broken = lock_broken(redis.pcall('ZCARD', waiters_key)) or lock_broken(redis.pcall('HLEN', seen_key))
  or lock_broken(last)

if member ~= '' and not queue_broken then lock_leave(waiters_key, seen_key, member) end

if type(value) ~= 'string' or string.sub(value, 1, #mine) ~= mine then return 0 end

-- A foreign key in place of the queue must not keep the lock held.
if queue_broken then
  redis.call('DEL', lock_key)
  return 1
end
local claim_ms = string.match(ARGV[3], '^r? %d+ (%d+)')
if lock_hand_over(lock_key, waiters_key, seen_key, fence_key, nil, last, lock_now(), claim_ms, string.sub(ARGV[3], 1, 1) == 'r') then return 2 end
redis.call('DEL', lock_key)
return 1
