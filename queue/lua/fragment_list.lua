-- Fragment of get.lua and list.lua: queue_rows(reply, ids, states, scores, max_bytes [, clip]) -> how many rows it has
-- appended to reply. A row has strings: the state, the id, its score, attempt, priority, tag and text of its meta, options,
-- "1" and the payload, or "0" and "" where there is none. With clip the payloads are left out, and texts are cut to that
-- many bytes. Otherwise it ends before the payloads exceed max_bytes, but after one row at least; a payload that is not
-- noted as big counts as the largest of those. An id without a state may have a payload.
local function queue_rows(reply, ids, states, scores, max_bytes, clip)
  local k, rows, bytes = #reply, 0, 0
  queue_each(#ids, function(first, last)
    if rows < first - 1 then
      return -- the rows before have ended
    end
    local metas, bodies = redis.call('HMGET', KEYS[5], unpack(ids, first, last)), {}
    if not clip then
      for i = first, last do
        local meta = metas[i - first + 1]
        bytes = bytes + tonumber(meta and string.match(meta, '^[^;]*,l(%d+)') or queue_big)
        if bytes > max_bytes and i > 1 then
          last = i - 1
          break
        end
      end
      if last >= first then
        bodies = redis.call('HMGET', KEYS[4], unpack(ids, first, last))
      end
    end
    for i = first, last do
      local attempt, priority, tag, text, options = queue_parse(metas[i - first + 1])
      local body = bodies[i - first + 1]
      reply[k + 1], reply[k + 2], reply[k + 3] = states[i] or '', ids[i], string.format('%d', scores[i] or 0)
      reply[k + 4], reply[k + 5] = string.format('%d', attempt), string.format('%d', priority)
      reply[k + 6], reply[k + 7], reply[k + 8] = tag, clip and string.sub(text, 1, clip) or text, options
      reply[k + 9], reply[k + 10] = body and '1' or '0', body or ''
      k = k + 10
    end
    rows = math.max(rows, last)
  end)
  return rows
end
