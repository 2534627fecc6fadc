-- Looks up how far the ticks of some periodic tasks have come, and notes the start of those seen first.
--
-- KEYS  1 to the last but one as in the other scripts; the last: ticks
-- ARGV  the names of the periodic tasks
-- Returns strings: Redis TIME in microseconds; then per name its value in ticks: the last tick added in ms, or
--       "s" and since when its ticks count, in ms
-- Atomic because two schedulers that see a name first at the same time must note one start, and because the
-- times are to be compared with that of the server at the same moment.

local ticks = KEYS[#KEYS]
local now_us = queue_now()
local reply = {string.format('%d', now_us)}
queue_each(#ARGV, function(from, to)
  local values = redis.call('HMGET', ticks, unpack(ARGV, from, to))
  for i = from, to do
    local value = values[i - from + 1]
    if not value then
      value = 's' .. string.format('%d', math.floor(now_us / 1000))
      redis.call('HSET', ticks, ARGV[i], value)
    end
    reply[i + 1] = value
  end
end)
return reply
