-- Lists dead letters, the latest first.
--
-- KEYS  1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead
-- ARGV  1 how many to skip, 2 how many to return, at least 1
-- Returns strings, per task: id, time of death in ms, attempt, reason, "1" and the payload, or "0" where
--       the body is missing
-- Atomic so that each letter comes with its own reason and body.

local from = tonumber(ARGV[1])
local dead = redis.call('ZREVRANGE', KEYS[8], from, from + tonumber(ARGV[2]) - 1, 'WITHSCORES')
local reply, filled = {}, 0
queue_each(#dead / 2, function(first, last)
  local ids = {}
  for i = first, last do
    ids[i - first + 1] = dead[2 * i - 1]
  end
  local bodies = redis.call('HMGET', KEYS[4], unpack(ids))
  local metas = redis.call('HMGET', KEYS[5], unpack(ids))
  for i = 1, #ids do
    local attempt, _, _, reason = queue_parse(metas[i])
    local died = tonumber(dead[2 * (first + i - 1)])
    reply[filled + 1], reply[filled + 2] = ids[i], string.format('%d', died)
    reply[filled + 3], reply[filled + 4] = string.format('%d', attempt), reason
    reply[filled + 5], reply[filled + 6] = bodies[i] and '1' or '0', bodies[i] or ''
    filled = filled + 6
  end
end)
return reply
