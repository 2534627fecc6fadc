-- Calls one waiter back from its blocking pop, through the list on which it alone listens.
--
-- KEYS  those of fragment_common.lua, and 11 the waiter's own list
-- ARGV  1 ms after which the list goes away, where its waiter is gone already
-- Returns nothing
-- Atomic because a list without an end of life would stay for ever.

redis.call('DEL', KEYS[11]) -- a Redis at its memory limit lets a script through that removes first
redis.call('RPUSH', KEYS[11], '1')
redis.call('PEXPIRE', KEYS[11], ARGV[1])
return {}
