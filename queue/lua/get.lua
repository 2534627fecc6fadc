-- Looks tasks up by their ids.
--
-- KEYS  those of fragment_common.lua
-- ARGV  ids
-- Returns strings, per id: its state, "" where it is in none; score of that state, attempt, priority, tag and
--       text of its meta, "1" and the payload, or "0" where the body is missing, options
-- Atomic because a task that changes sets between two looks would seem to be in none.

local states = {{1, 'ready'}, {2, 'delayed'}, {3, 'leased'}, {8, 'dead'}}
local reply = {}
queue_each(#ARGV, function(from, to)
  local bodies = redis.call('HMGET', KEYS[4], unpack(ARGV, from, to))
  local metas = redis.call('HMGET', KEYS[5], unpack(ARGV, from, to))
  local scores = {}
  for s = 1, #states do
    scores[s] = redis.call('ZMSCORE', KEYS[states[s][1]], unpack(ARGV, from, to))
  end
  for i = 1, to - from + 1 do
    local state, score = '', '0'
    for s = #states, 1, -1 do
      if scores[s][i] then
        state, score = states[s][2], string.format('%d', tonumber(scores[s][i]))
      end
    end
    local attempt, priority, tag, text, options = queue_parse(metas[i])
    for _, field in ipairs({state, score, string.format('%d', attempt), string.format('%d', priority), tag, text,
      bodies[i] and '1' or '0', bodies[i] or '', options}) do
      reply[#reply + 1] = field
    end
  end
end)
return reply
