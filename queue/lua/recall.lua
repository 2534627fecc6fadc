-- Calls one waiter back from its blocking pop, through the list on which it alone listens.
--
-- KEYS  1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead, 9 unique, 10 unique_until, 11 paused,
--       12 done, 13 counts, 14 rate, 15 the waiter's own list
-- ARGV  1 ms after which the list goes away, where its waiter is gone already
-- Returns nothing
-- Atomic because a list without an end of life would stay for ever.

redis.call('DEL', KEYS[15]) -- a Redis at its memory limit lets a script through that removes first
redis.call('RPUSH', KEYS[15], '1')
redis.call('PEXPIRE', KEYS[15], ARGV[1])
return {}
