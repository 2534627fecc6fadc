-- Stops or resumes the taking of tasks.
--
-- KEYS  1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead, 9 unique, 10 unique_until, 11 paused,
--       12 done, 13 counts, 14 rate
-- ARGV  1 "1" to pause, "0" to resume
-- Returns 1 where that changed something, else 0
-- Atomic because workers that slept through the pause must be woken when it ends.

if ARGV[1] == '1' then
  return redis.call('SETNX', KEYS[11], '1')
end
if redis.call('DEL', KEYS[11]) == 0 then
  return 0
end
queue_wake(0)
return 1
