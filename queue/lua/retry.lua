-- Makes a dead task ready again, with its attempts forgotten.
--
-- KEYS  1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead, 9 unique, 10 unique_until, 11 paused,
--       12 done, 13 counts, 14 rate
-- ARGV  1 id, 2 max_length
-- Returns K done, M no such dead task, F the queue is full, U its unique key is another task's
-- Atomic because the task leaves one set and enters the other as one step.

local id = ARGV[1]
if not redis.call('ZSCORE', KEYS[8], id) then
  return 'M'
end
if queue_room(0, tonumber(ARGV[2])) < 1 then
  return 'F'
end
local _, priority, _, reason, options = queue_parse(redis.call('HGET', KEYS[5], id))
local key = string.match(options, ',u([^,]+)')
if key and not string.find(options, ',w', 1, true) then
  local owner = queue_owner(key, queue_now() / 1000)
  if owner and owner ~= id .. ';0' then
    return 'U'
  end
  redis.call('HSET', KEYS[9], key, id .. ';0')
end
redis.call('ZREM', KEYS[8], id)
redis.call('ZADD', KEYS[1], string.format('%d', queue_now() - priority * queue_age_us), id)
redis.call('HSET', KEYS[5], id, queue_meta(0, priority, 'R', reason, options))
queue_wake(0)
return 'K'
