-- Removes the first tasks of one state, with their bodies.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 number of the state's key, 2 how many at most
-- Returns how many it removed, and how many are left
-- Atomic because a task must not be taken between the look and the removal.

local key, n = KEYS[tonumber(ARGV[1])], tonumber(ARGV[2])
local ids = redis.call('ZRANGE', key, 0, n - 1)
queue_each(#ids, function(from, to)
  redis.call('ZREM', key, unpack(ids, from, to))
  queue_forget({unpack(ids, from, to)}, redis.call('HMGET', KEYS[5], unpack(ids, from, to)))
end)
return {#ids, redis.call('ZCARD', key)}
