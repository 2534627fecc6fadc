-- Fragment of ack.lua and complete.lua: what the statistics count of tasks that were acknowledged. It follows
-- fragment_common.lua and fragment_done.lua.

-- queue_processed(now_ms, n, keep_ms): counts n tasks in their minute, by one command for the hot path's sake. The
-- first of a minute cleans up: it sums up the minutes that are over an hour ago, and drops what is kept where
-- nothing is to be kept any more.
local function queue_processed(now_ms, n, keep_ms)
  local minute = math.floor(now_ms / 60000)
  if queue_tally('m' .. minute, n) ~= n then
    return
  end
  local counts = redis.call('HGETALL', KEYS[13])
  local sum, old, k = 0, {}, 0
  for i = 1, #counts, 2 do
    local other = tonumber(string.match(counts[i], '^m(%d+)$') or minute)
    if math.abs(minute - other) > 60 then -- a clock that was set wrong leaves minutes in the future
      k = k + 1
      old[k] = counts[i]
      sum = sum + (tonumber(counts[i + 1]) or 0)
    end
  end
  if k > 0 then
    queue_each(k, function(from, to)
      redis.call('HDEL', KEYS[13], unpack(old, from, to))
    end)
    queue_tally('processed', string.format('%d', sum))
  end
  local kept = keep_ms == 0 and redis.pcall('ZCARD', KEYS[12])
  if type(kept) == 'number' and kept > 0 then
    queue_trim_done(now_ms, 0, 0, 1024)
  end
end
