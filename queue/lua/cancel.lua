-- Removes tasks from whatever state they are in.
--
-- KEYS  those of fragment_common.lua
-- ARGV  ids
-- Returns a string with one letter per id: r ready, d delayed, l leased, x dead, M in none
-- Atomic because a task must not be taken between the look and the removal. Who holds the lease of one
-- that is removed finds at the next extension or acknowledgement that it is missing.

local states = {{1, 'r'}, {2, 'd'}, {3, 'l'}, {8, 'x'}}
local status = {}
for i = 1, #ARGV do
  status[i] = 'M'
  for s = 1, #states do
    if redis.call('ZREM', KEYS[states[s][1]], ARGV[i]) == 1 then
      status[i] = states[s][2]
    end
  end
  if status[i] ~= 'M' then
    queue_forget({ARGV[i]})
  end
end
return table.concat(status)
