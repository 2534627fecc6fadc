-- Ends one waiter's blocking pop, through the list on which only that waiter listens.
--
-- KEYS  those of fragment_common.lua, and 11 the waiter's own list
-- ARGV  1 TTL of the list in ms, in case its waiter is gone already
-- Returns nothing
-- Atomic because a list without a TTL would stay forever.

redis.call('DEL', KEYS[11]) -- a Redis at its memory limit lets a script through that removes first
redis.call('RPUSH', KEYS[11], '1')
redis.call('PEXPIRE', KEYS[11], ARGV[1])
return {}
