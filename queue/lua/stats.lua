-- Counts the tasks per state.
--
-- KEYS  1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead, 9 unique, 10 unique_until, 11 paused,
--       12 done, 13 counts, 14 rate
-- Returns integers: ready, delayed, leased, dead, age of the ready task at the head in microseconds,
--       1 if paused, done
-- Atomic so that the counts belong to one moment: no task is counted twice or not at all.

local age = 0
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if head[1] then
  local _, priority = queue_parse(redis.call('HGET', KEYS[5], head[1]))
  age = math.max(0, queue_now() - (tonumber(head[2]) + priority * queue_age_us))
end
return {redis.call('ZCARD', KEYS[1]), redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[3]),
  redis.call('ZCARD', KEYS[8]), age, redis.call('EXISTS', KEYS[11]), redis.call('ZCARD', KEYS[12])}
