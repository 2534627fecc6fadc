-- Lists the tasks of one state: ready and delayed in the order in which they are to run, leased by the end
-- of the lease, dead and done ones the latest first.
--
-- KEYS  1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead, 9 unique, 10 unique_until, 11 paused,
--       12 done, 13 counts, 14 rate
-- ARGV  1 number of the state's key, 2 how many to skip, 3 how many to return, at least 1
-- Returns strings, per task: id, score, attempt, priority, tag and text of its meta, "1" and the payload,
--       or "0" where the body is missing, options
-- Atomic so that each task comes with its own meta and body.

local from, to = tonumber(ARGV[2]), tonumber(ARGV[2]) + tonumber(ARGV[3]) - 1
local range = (ARGV[1] == '8' or ARGV[1] == '12') and 'ZREVRANGE' or 'ZRANGE'
local found = redis.call(range, KEYS[tonumber(ARGV[1])], from, to, 'WITHSCORES')
local reply, filled = {}, 0
queue_each(#found / 2, function(first, last)
  local ids = {}
  for i = first, last do
    ids[i - first + 1] = found[2 * i - 1]
  end
  local bodies = redis.call('HMGET', KEYS[4], unpack(ids))
  local metas = redis.call('HMGET', KEYS[5], unpack(ids))
  for i = 1, #ids do
    local attempt, priority, tag, text, options = queue_parse(metas[i])
    reply[filled + 1] = ids[i]
    reply[filled + 2] = string.format('%d', tonumber(found[2 * (first + i - 1)]))
    reply[filled + 3], reply[filled + 4] = string.format('%d', attempt), string.format('%d', priority)
    reply[filled + 5], reply[filled + 6] = tag, text
    reply[filled + 7], reply[filled + 8] = bodies[i] and '1' or '0', bodies[i] or ''
    reply[filled + 9] = options
    filled = filled + 9
  end
end)
return reply
