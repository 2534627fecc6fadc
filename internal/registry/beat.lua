-- Records that a worker process is alive, or that it has left, and removes the entries of workers that have
-- been silent for too long.
--
-- KEYS  1 workers: hash, worker id -> "seen started fetched host version", the first three in ms since 1970 and
--       fetched 0 for never; and for all workers together, past ones included, the fields :seen and :fetched
-- ARGV  1 id, 2 ms since the worker started, 3 ms since it last fetched, negative for never, 4 host, 5 version,
--       6 ms of silence after which an entry is removed, 7 ms until the key expires, 8 most entries,
--       9 "1" if the worker leaves
-- Returns 1, or 0 where the registry is full and nothing was written
-- Atomic so that the entry, the latest times and the key's end change together. The hash has at most ARGV[8]
-- workers, so reading all of it is bounded.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local id, idle = ARGV[1], tonumber(ARGV[3])
local fetched = idle >= 0 and now - idle or 0
local oldest = now - tonumber(ARGV[6])
local all, silent, others, latest = redis.call('HGETALL', KEYS[1]), {}, 0, fetched
for i = 1, #all, 2 do
  local field, value = all[i], all[i + 1]
  if field == ':fetched' then
    local before = tonumber(value) or 0
    if before <= now + tonumber(ARGV[6]) then -- a later one is from before the clock was set back
      latest = math.max(latest, before)
    end
  elseif field ~= ':seen' and field ~= id then
    local seen = tonumber(string.match(value, '^%d+')) or 0
    if seen < oldest or seen > now + tonumber(ARGV[6]) then -- the latter if the clock was set back
      silent[#silent + 1] = field
    else
      others = others + 1
    end
  end
end
if ARGV[9] ~= '1' and others >= tonumber(ARGV[8]) then
  return 0
end
for _, field in ipairs(silent) do
  redis.call('HDEL', KEYS[1], field)
end
if ARGV[9] == '1' then
  redis.call('HDEL', KEYS[1], id)
else
  redis.call('HSET', KEYS[1], id, string.format('%d %d %d %s %s', now, now - tonumber(ARGV[2]), fetched, ARGV[4], ARGV[5]))
end
redis.call('HSET', KEYS[1], ':seen', string.format('%d', now))
if latest > 0 then
  redis.call('HSET', KEYS[1], ':fetched', string.format('%d', latest))
end
redis.call('PEXPIRE', KEYS[1], ARGV[7])
return 1
