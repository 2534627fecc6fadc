-- Reads the state of a lock without changing it.
--
-- KEYS: 1 lock, 2 waiters, 3 seen, 4 fence (see acquire.lua)
-- ARGV: 1 how many waiters to list at most
-- Returns {value or "", ms left (-1 without TTL, -2 not held), last fencing
--          token or "", waiters, then for each one listed: its entry and 1 if
--          it counts as alive}
--         {-1} one of the keys has another type
--
-- Atomic, because the holder, its TTL and its queue should belong to one moment.
-- handover.lua precedes it in the same script.

local value = redis.pcall('GET', KEYS[1])
local waiting = redis.pcall('ZCARD', KEYS[2])
local stored = redis.pcall('GET', KEYS[4])
local bad = lock_broken(value) or lock_broken(waiting) or lock_broken(stored)
  or lock_broken(redis.pcall('HLEN', KEYS[3]))
if bad then return bad[1] == -1 and {-1} or bad end

local reply = {value or '', redis.call('PTTL', KEYS[1]), stored or '', waiting}
if tonumber(ARGV[1]) < 1 then return reply end -- a range that ends at -1 would list them all
local now_ms = math.floor(lock_now() / 1000)
for _, member in ipairs(redis.call('ZRANGE', KEYS[2], 0, tonumber(ARGV[1]) - 1)) do
  local alive_until = redis.call('HGET', KEYS[3], member)
  reply[#reply + 1] = member
  reply[#reply + 1] = (alive_until and (tonumber(alive_until) or 0) >= now_ms) and 1 or 0
end
return reply
