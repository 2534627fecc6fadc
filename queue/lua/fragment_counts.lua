-- Fragment of ack.lua and complete.lua: what the statistics count of tasks that were acknowledged. It follows
-- fragment_common.lua.

-- queue_processed(n): counts n entries in their minute, by one command for the hot path's sake. The first of a minute
-- sums up the minutes before the last.
local function queue_processed(n)
  local minute = math.floor(queue_now() / 60000000)
  if queue_tally('m' .. minute, n) ~= n then
    return
  end
  local counts = redis.call('HGETALL', KEYS[8])
  local sum, old, k = 0, {}, 0
  for i = 1, #counts, 2 do
    local other = tonumber(string.match(counts[i], '^m(%d+)$') or minute)
    if math.abs(minute - other) > 1 then -- a clock that was set wrong leaves minutes in the future
      k = k + 1
      old[k] = counts[i]
      sum = sum + (tonumber(counts[i + 1]) or 0)
    end
  end
  if k > 0 then
    queue_each(k, function(from, to)
      redis.call('HDEL', KEYS[8], unpack(old, from, to))
    end)
    queue_tally('processed', string.format('%d', sum))
  end
end
