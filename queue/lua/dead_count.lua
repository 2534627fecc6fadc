-- Counts the dead letters after a position.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 time of death in ms and 2 id of the position (-1 and '': the start), 3 the latest time of death to be counted
-- Returns that number, the number of all dead letters, and the time in ms
-- Atomic so that the numbers belong together.

local upto = redis.call('ZCOUNT', KEYS[10], '-inf', ARGV[3])
return {math.max(0, upto - queue_dead_behind(ARGV[1], ARGV[2])), redis.call('ZCARD', KEYS[10]), math.floor(queue_now() / 1000)}
