-- The rest of release.lua, after handover.lua: there are waiters, or the token may
-- have a place in the queue. KEYS, ARGV and replies as there.

local token, member = ARGV[1], ARGV[2]
local trust_receivers = string.find(ARGV[3], 'r', 1, true)

local value = redis.pcall('GET', KEYS[1])
local last = redis.pcall('GET', KEYS[4])
local queue_broken = lock_broken(redis.pcall('ZCARD', KEYS[2])) or lock_broken(redis.pcall('HLEN', KEYS[3]))
  or lock_broken(last)

if member ~= '' and not queue_broken then lock_leave(KEYS[2], KEYS[3], member) end

local mine = token .. ':'
if type(value) ~= 'string' or string.sub(value, 1, #mine) ~= mine then return 0 end

-- A foreign key in place of the queue must not keep the lock held.
if queue_broken then
  redis.call('DEL', KEYS[1])
  return 1
end
if lock_hand_over(nil, last, lock_now(), ARGV[4], trust_receivers) then return 2 end
redis.call('DEL', KEYS[1])
return 1
