-- Lists dead letters behind a place, the earliest first.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 time of death in ms and 2 id of the letter that ends the page before (-1 and '': from the start),
--       3 the latest time of death to be listed, 4 how many to return, at least 1
-- Returns what list.lua does
-- Atomic so that each task comes with its own meta and body.
--
-- The place is the letter's, whose rank changes as others are removed. Where that letter itself is gone, those
-- that died in the same millisecond are listed once more.

local rank = redis.call('ZRANK', KEYS[10], ARGV[2])
if rank and tonumber(redis.call('ZSCORE', KEYS[10], ARGV[2])) == tonumber(ARGV[1]) then
  rank = rank + 1
else
  rank = redis.call('ZCOUNT', KEYS[10], '-inf', '(' .. ARGV[1])
end
local found = redis.call('ZRANGE', KEYS[10], rank, rank + tonumber(ARGV[4]) - 1, 'WITHSCORES')
local listed = 0
while listed < #found / 2 and tonumber(found[2 * listed + 2]) <= tonumber(ARGV[3]) do
  listed = listed + 1
end
return queue_list(found, listed)
