-- Looks tasks up by their ids.
--
-- KEYS  those of fragment_common.lua
-- ARGV  ids
-- Returns strings, per id: its state; score of that state, attempt, priority, tag and text of its meta, "1" and the
--       payload, or "0" where the body is missing, options. Where it is in no state only: "", and "1" and the
--       payload, or "0" and ""
-- Atomic because a task that changes sets between two looks would seem to be in none.

local states = {{1, 'ready'}, {2, 'delayed'}, {3, 'leased'}, {10, 'dead'}}
local reply, k = {}, 0
queue_each(#ARGV, function(from, to)
  local bodies = redis.call('HMGET', KEYS[4], unpack(ARGV, from, to))
  local metas = redis.call('HMGET', KEYS[5], unpack(ARGV, from, to))
  local found, scores = {}, {}
  for s = #states, 1, -1 do
    local all = redis.call('ZMSCORE', KEYS[states[s][1]], unpack(ARGV, from, to))
    for i = 1, #all do
      if all[i] then
        found[i], scores[i] = states[s][2], all[i]
      end
    end
  end
  for i = 1, to - from + 1 do
    local body = bodies[i]
    if found[i] then
      local attempt, priority, tag, text, options = queue_parse(metas[i])
      reply[k + 1], reply[k + 2] = found[i], string.format('%d', tonumber(scores[i]))
      reply[k + 3], reply[k + 4] = string.format('%d', attempt), string.format('%d', priority)
      reply[k + 5], reply[k + 6] = tag, text
      reply[k + 7], reply[k + 8] = body and '1' or '0', body or ''
      reply[k + 9] = options
      k = k + 9
    else
      reply[k + 1], reply[k + 2], reply[k + 3] = '', body and '1' or '0', body or ''
      k = k + 3
    end
  end
end)
return reply
