-- Removes tasks, from whatever state they are in or only dead letters.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 "1" to remove only dead letters, then ids
-- Returns a string with one letter per id: r ready, d delayed, l leased, x dead, M in none of them
-- Atomic because a task must not be taken between the look and the removal. The holder of a lease that
-- is removed finds at the next extension or acknowledgement that it is missing.

local states = {{10, 'x'}, {1, 'r'}, {2, 'd'}, {3, 'l'}}
local status = {}
for i = 2, #ARGV do
  local letter = 'M'
  for s = 1, ARGV[1] == '1' and 1 or #states do
    if redis.call('ZREM', KEYS[states[s][1]], ARGV[i]) == 1 then
      letter = states[s][2]
    end
  end
  if letter ~= 'M' then
    queue_forget({ARGV[i]}, {redis.call('HGET', KEYS[5], ARGV[i])})
  end
  status[i - 1] = letter
end
return table.concat(status)
