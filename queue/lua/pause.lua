-- Stops or resumes the taking of tasks.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 "1" to pause, "0" to resume
-- Returns 1 where that changed something, else 0
-- Atomic because workers that slept through the pause must be woken when it ends.

if ARGV[1] == '1' then
  return redis.call('SETNX', KEYS[9], '1')
end
if redis.call('DEL', KEYS[9]) == 0 then
  return 0
end
queue_wake(0)
return 1
