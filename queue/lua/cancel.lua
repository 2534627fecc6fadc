-- Removes tasks from whatever state they are in.
--
-- KEYS  1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead, 9 unique, 10 unique_until, 11 paused,
--       12 done, 13 counts, 14 rate
-- ARGV  ids
-- Returns a string with one letter per id: r ready, d delayed, l leased, x dead, a done, M in none
-- Atomic because a task must not be taken between the look and the removal. Who holds the lease of one
-- that is removed finds at the next extension or acknowledgement that it is missing.

local states = {{1, 'r'}, {2, 'd'}, {3, 'l'}, {8, 'x'}, {12, 'a'}}
local status, freed = {}, false
for i = 1, #ARGV do
  status[i] = 'M'
  for s = 1, #states do
    if redis.call('ZREM', KEYS[states[s][1]], ARGV[i]) == 1 then
      status[i] = states[s][2]
      freed = freed or status[i] == 'l'
    end
  end
  if status[i] ~= 'M' then
    queue_forget(ARGV, i, i)
  end
end
if freed then
  queue_freed()
end
return table.concat(status)
