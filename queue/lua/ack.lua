-- Acknowledges leased tasks: they are done, and leave nothing behind unless they are to be kept.
--
-- KEYS  1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead, 9 unique, 10 unique_until, 11 paused,
--       12 done, 13 counts, 14 rate
-- ARGV  1 "1" where the number of leases is limited, 2 ms for which done tasks are kept (0: not at all), 3 how many
--       of them; then per task: id, lease token as the meta holds it
-- Returns a string with one letter per task: K done, S stale (another lease is current), M missing
-- Atomic because the token must still be the current one when the task is removed. A repeat after a
-- lost reply finds nothing, or what is kept, and says M.

local keep_ms, max_done = tonumber(ARGV[2]), tonumber(ARGV[3])
local now_ms = math.floor(queue_now() / 1000)
if keep_ms > 0 then
  redis.call('ZCARD', KEYS[12]) -- a key of another type fails here, before the first write
end

local n = (#ARGV - 3) / 2
local ids = {}
for i = 1, n do
  ids[i] = ARGV[2 * i + 2]
end
local status, freed = {}, 0
queue_each(n, function(from, to)
  local metas = redis.call('HMGET', KEYS[5], unpack(ids, from, to))
  local done, kept, records, k = {}, {}, {}, 0
  for i = from, to do
    local meta = metas[i - from + 1]
    if not meta then
      status[i] = 'M'
    elseif meta == ARGV[2 * i + 3] then
      status[i] = 'K'
      k = k + 1
      done[k] = ids[i]
      if keep_ms > 0 then
        kept[2 * k - 1], kept[2 * k] = string.format('%d', now_ms), ids[i]
        records[2 * k - 1], records[2 * k] = ids[i], string.match(meta, '^[^;]*') .. ';A'
      end
      if string.find(meta, ',u', 1, true) then
        local _, _, _, _, options = queue_parse(meta)
        queue_free(ids[i], options)
      end
    else
      status[i] = queue_ended(meta)
    end
  end
  if k > 0 then
    freed = freed + redis.call('ZREM', KEYS[3], unpack(done, 1, k)) -- fewer where one was given twice
    if keep_ms > 0 then
      redis.call('ZADD', KEYS[12], unpack(kept, 1, 2 * k))
      redis.call('HSET', KEYS[5], unpack(records, 1, 2 * k))
    else
      redis.call('HDEL', KEYS[4], unpack(done, 1, k))
      redis.call('HDEL', KEYS[5], unpack(done, 1, k))
    end
  end
end)
if freed > 0 then
  queue_processed(now_ms, freed, keep_ms)
end
if keep_ms > 0 then
  queue_trim_done(now_ms, keep_ms, max_done, freed + 256)
end
if freed > 0 and ARGV[1] == '1' then
  queue_freed()
end
return table.concat(status)
