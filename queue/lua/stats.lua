-- Counts the tasks per state, and returns what was counted so far.
--
-- KEYS  those of fragment_common.lua
-- Returns strings: ready, delayed, leased, dead, age of the ready task at the head in microseconds, 1 if
--       paused, the time in ms; then the fields of counts, each with its value
-- Atomic so that the counts belong to one moment: no task is counted twice or not at all.

local now_us = queue_now()
local reply = {}
for i, number in ipairs({redis.call('ZCARD', KEYS[1]), redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[3]),
  redis.call('ZCARD', KEYS[10]), queue_oldest(now_us), redis.call('EXISTS', KEYS[9]),
  math.floor(now_us / 1000)}) do
  reply[i] = string.format('%d', number)
end
for _, text in ipairs(redis.call('HGETALL', KEYS[8])) do
  reply[#reply + 1] = text
end
return reply
