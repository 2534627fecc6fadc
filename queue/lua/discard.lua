-- Removes a dead task for good, with its body.
--
-- KEYS  1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead, 9 unique, 10 unique_until, 11 paused,
--       12 done, 13 counts, 14 rate
-- ARGV  1 id
-- Returns K done, M no such dead task
-- Atomic because only a task that is dead may lose its body.

if redis.call('ZREM', KEYS[8], ARGV[1]) == 0 then
  return 'M'
end
queue_forget(ARGV, 1, 1)
return 'K'
