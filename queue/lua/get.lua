-- Looks tasks up by their ids.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 max_bytes and 2 clip as in fragment_list.lua (clip '': everything), then ids
-- Returns "0", and the rows of fragment_list.lua, which may end before the last id; the state is '' where the id is in none
-- Atomic because a task that changes sets between two looks would seem to be in none.

local ids, found, scores = {}, {}, {}
for i = 3, #ARGV do
  ids[i - 2] = ARGV[i]
end
queue_each(#ids, function(from, to)
  for _, state in ipairs({{10, 'dead'}, {3, 'leased'}, {2, 'delayed'}, {1, 'ready'}}) do
    for i, score in ipairs(redis.call('ZMSCORE', KEYS[state[1]], unpack(ids, from, to))) do
      if score then
        found[from + i - 1], scores[from + i - 1] = state[2], tonumber(score)
      end
    end
  end
end)
local reply = {'0'}
queue_rows(reply, ids, found, scores, tonumber(ARGV[1]), tonumber(ARGV[2]))
return reply
