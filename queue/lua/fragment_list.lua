-- Fragment of get.lua and list.lua: queue_rows(ids, states, scores [, clip]) -> strings, per id: its state, the id, its
-- score, attempt, priority, tag and text of its meta, options, "1" and the payload, or "0" and "" where there is none. With
-- clip the payloads are left out, and texts are cut to that many bytes. An id without a state may have a payload.
local function queue_rows(ids, states, scores, clip)
  local reply, k = {}, 0
  queue_each(#ids, function(first, last)
    local metas = redis.call('HMGET', KEYS[5], unpack(ids, first, last))
    local bodies = clip and {} or redis.call('HMGET', KEYS[4], unpack(ids, first, last))
    for i = first, last do
      local attempt, priority, tag, text, options = queue_parse(metas[i - first + 1])
      local body = bodies[i - first + 1]
      reply[k + 1], reply[k + 2], reply[k + 3] = states[i] or '', ids[i], string.format('%d', scores[i] or 0)
      reply[k + 4], reply[k + 5] = string.format('%d', attempt), string.format('%d', priority)
      reply[k + 6], reply[k + 7], reply[k + 8] = tag, clip and string.sub(text, 1, clip) or text, options
      reply[k + 9], reply[k + 10] = body and '1' or '0', body or ''
      k = k + 10
    end
  end)
  return reply
end
