-- Acknowledges leased tasks: they are done, and leave nothing behind.
--
-- KEYS  those of fragment_common.lua
-- ARGV  per task: id, lease token as the meta holds it
-- Returns a string with one letter per task: K done, S stale (another lease is current), M missing
-- Atomic because the token must still be the current one when the task is removed. A repeat after a
-- lost reply finds nothing and says M.

local n = #ARGV / 2
local ids = {}
for i = 1, n do
  ids[i] = ARGV[2 * i - 1]
end
local status, freed, seen = {}, 0, {}
queue_each(n, function(from, to)
  local metas = redis.call('HMGET', KEYS[5], unpack(ids, from, to))
  local done, held, k = {}, {}, 0
  for i = from, to do
    local meta = metas[i - from + 1]
    if not meta then
      status[i] = 'M'
    elseif meta == ARGV[2 * i] then
      status[i] = 'K'
      if not seen[ids[i]] then -- it may be given twice
        seen[ids[i]] = true
        k = k + 1
        done[k], held[k] = ids[i], meta
      end
    else
      status[i] = 'S'
    end
  end
  if k > 0 then
    redis.call('ZREM', KEYS[3], unpack(done, 1, k))
    freed = freed + queue_forget(done, held)
  end
end)
if freed > 0 then
  queue_processed(freed)
end
return table.concat(status)
