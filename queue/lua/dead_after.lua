-- Lists dead letters after a position, the earliest first.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 time of death in ms and 2 id of the letter that ends the page before (-1 and '': from the start),
--       3 the latest time of death to be listed, 4 how many to return, at least 1
-- Returns what list.lua does
-- Atomic so that each task comes with its own meta and body.

local rank = queue_dead_behind(ARGV[1], ARGV[2])
local found = redis.call('ZRANGE', KEYS[10], rank, rank + tonumber(ARGV[4]) - 1, 'WITHSCORES')
local listed = 0
while listed < #found / 2 and tonumber(found[2 * listed + 2]) <= tonumber(ARGV[3]) do
  listed = listed + 1
end
return queue_list(found, listed)
