-- Fragment for other scripts: queue_list(found, n) returns, for the first n pairs of id and score in found, as strings:
-- id, score, attempt, priority, tag and text of its meta, "1" and the payload, or "0" where the body is missing, options.
local function queue_list(found, n)
  local reply, filled = {}, 0
  queue_each(n, function(first, last)
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
end
