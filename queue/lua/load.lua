-- Returns the load of the queue for admission control: how many tasks wait, for how long, and how many were done.
--
-- KEYS  those of fragment_common.lua
-- Returns integers: entries of the tasks that count for the maximum length, ready and leased tasks, age of the ready task at
--       the head in microseconds, the present minute since 1970, entries acknowledged in it
-- Atomic so that the figures belong to one moment. Cheap, because it is asked many times a second.

local now_us = queue_now()
local minute = math.floor(now_us / 60000000)
local active = redis.call('ZCARD', KEYS[1]) + redis.call('ZCARD', KEYS[3])
return {
  active + redis.call('ZCARD', KEYS[2]) + queue_extra(0), active, queue_oldest(now_us), minute,
  tonumber(redis.call('HGET', KEYS[8], string.format('m%d', minute)) or 0) or 0}
