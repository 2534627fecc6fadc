-- Returns the load of the queue for admission control: how many tasks wait, for how long, and how many were done.
--
-- KEYS  those of fragment_common.lua
-- Returns integers: entries of the tasks that count for the maximum length, ready and leased tasks, age of the ready task at
--       the head in microseconds, the present minute since 1970, entries acknowledged in it
-- Atomic so that the figures belong to one moment. Cheap, because it is asked many times a second.

local now_us, age = queue_now(), 0
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if head[1] then
  local _, priority = queue_parse(redis.call('HGET', KEYS[5], head[1]))
  age = math.max(0, now_us - (tonumber(head[2]) + priority * queue_age_us))
end
local minute = math.floor(now_us / 60000000)
local active = redis.call('ZCARD', KEYS[1]) + redis.call('ZCARD', KEYS[3])
return {
  active + redis.call('ZCARD', KEYS[2]) + queue_extra(0), active, age, minute,
  tonumber(redis.call('HGET', KEYS[8], string.format('m%d', minute)) or 0) or 0}
