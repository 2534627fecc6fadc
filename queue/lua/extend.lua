-- Extends leases: they end a full lease from now.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 lease in ms; then per task: id, lease token as the meta holds it
-- Returns a string with one letter per task: K extended, S stale (another lease is current), M missing
-- Atomic because a lease that was reclaimed a moment ago must not be extended.

local n = (#ARGV - 1) / 2
local ids = {}
for i = 1, n do
  ids[i] = ARGV[2 * i]
end
local lease_end = string.format('%d', math.ceil(queue_now() / 1000) + tonumber(ARGV[1]))
local status = {}
queue_each(n, function(from, to)
  local metas = redis.call('HMGET', KEYS[5], unpack(ids, from, to))
  local leased, mine, k = {}, {}, 0
  for i = from, to do
    local meta = metas[i - from + 1]
    if not meta then
      status[i] = 'M'
    elseif meta == ARGV[2 * i + 1] then
      status[i] = 'K'
      leased[k + 1], leased[k + 2] = lease_end, ids[i]
      mine[k / 2 + 1] = ids[i]
      k = k + 2
    else
      status[i] = 'S'
    end
  end
  if k > 0 then
    -- Removed first because a Redis at its memory limit refuses a script whose first write adds.
    redis.call('ZREM', KEYS[3], unpack(mine, 1, k / 2))
    redis.call('ZADD', KEYS[3], unpack(leased, 1, k))
  end
end)
return table.concat(status)
