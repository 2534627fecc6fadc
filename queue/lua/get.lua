-- Looks tasks up by their ids.
--
-- KEYS  those of fragment_common.lua
-- ARGV  ids
-- Returns what queue_rows does; the state is '' where the id is in none
-- Atomic because a task that changes sets between two looks would seem to be in none.

local found, scores = {}, {}
queue_each(#ARGV, function(from, to)
  for _, state in ipairs({{10, 'dead'}, {3, 'leased'}, {2, 'delayed'}, {1, 'ready'}}) do
    for i, score in ipairs(redis.call('ZMSCORE', KEYS[state[1]], unpack(ARGV, from, to))) do
      if score then
        found[from + i - 1], scores[from + i - 1] = state[2], tonumber(score)
      end
    end
  end
end)
return queue_rows(ARGV, found, scores)
