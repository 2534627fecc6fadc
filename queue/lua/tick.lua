-- Adds the task of one tick of a periodic task, and notes the tick as its last.
--
-- KEYS  1 to the last but one as in the other scripts; the last: ticks
-- ARGV  1 name of the periodic task, 2 tick in ms, 3 time in ms from which on the tick is not to be added
--       (0: none), 4 max_length; then the task as enqueue.lua takes it
-- Returns K added, D duplicate (noted all the same), F full and nothing changed, O this tick or a later one was
--       noted before, L the time of ARGV 3 has come
-- Atomic because the note is what keeps every other scheduler, and this one after a restart, from adding the
-- task again: a task without its note would come twice, a note without its task not at all. A repeat after a
-- lost reply finds the note and says O.

local ticks, tick, till = KEYS[#KEYS], tonumber(ARGV[2]), tonumber(ARGV[3])
local noted = redis.call('HGET', ticks, ARGV[1])
-- The value is a time in both of its forms, and no tick before either is to come.
if tick <= tonumber(string.match(noted or '', '%d+') or '0') then
  return 'O'
end
if till > 0 and queue_now() >= till * 1000 then
  return 'L'
end
local status = queue_put(5, 1, tonumber(ARGV[4]))[1]
if status ~= 'F' then
  redis.call('HSET', ticks, ARGV[1], ARGV[2])
end
return status
