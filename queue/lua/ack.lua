-- Acknowledges leased tasks: they are done and leave nothing behind.
--
-- KEYS  1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead, 9 unique, 10 unique_until, 11 paused,
--       12 done, 13 counts, 14 rate
-- ARGV  1 "1" where the number of leases is limited; then per task: id, lease token as the meta holds it
-- Returns a string with one letter per task: K done, S stale (another lease is current), M missing
-- Atomic because the token must still be the current one when the task is removed. A repeat after a
-- lost reply finds nothing and says M.

local n = (#ARGV - 1) / 2
local ids = {}
for i = 1, n do
  ids[i] = ARGV[2 * i]
end
local status, freed = {}, 0
queue_each(n, function(from, to)
  local metas = redis.call('HMGET', KEYS[5], unpack(ids, from, to))
  local done, k = {}, 0
  for i = from, to do
    local meta = metas[i - from + 1]
    if not meta then
      status[i] = 'M'
    elseif meta == ARGV[2 * i + 1] then
      status[i] = 'K'
      k = k + 1
      done[k] = ids[i]
      if string.find(meta, ',u', 1, true) then
        local _, _, _, _, options = queue_parse(meta)
        queue_free(ids[i], options)
      end
    else
      status[i] = 'S'
    end
  end
  if k > 0 then
    freed = freed + k
    redis.call('ZREM', KEYS[3], unpack(done, 1, k))
    redis.call('HDEL', KEYS[4], unpack(done, 1, k))
    redis.call('HDEL', KEYS[5], unpack(done, 1, k))
  end
end)
if freed > 0 and ARGV[1] == '1' then
  queue_freed()
end
return table.concat(status)
