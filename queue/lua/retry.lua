-- Makes a dead task ready again, with its attempts forgotten.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 id, 2 max_length
-- Returns K done, M no such dead task, F the queue is full
-- Atomic because the task leaves one set and enters the other as one step.

local id = ARGV[1]
if not redis.call('ZSCORE', KEYS[8], id) then
  return 'M'
end
if queue_room(0, tonumber(ARGV[2])) < 1 then
  return 'F'
end
local _, priority, _, reason, options = queue_parse(redis.call('HGET', KEYS[5], id))
redis.call('ZREM', KEYS[8], id)
redis.call('ZADD', KEYS[1], string.format('%d', queue_now() - priority * queue_age_us), id)
redis.call('HSET', KEYS[5], id, queue_meta(0, priority, 'R', reason, options))
queue_wake(0)
return 'K'
