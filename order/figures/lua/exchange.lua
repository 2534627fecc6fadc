-- Publishes the counters of one process, and returns those of all processes to a process that shows them.
--
-- KEYS  1 reports: hash, process id -> "<ms since 1970> <report>"
--       2 watched: exists while a process shows the figures
-- ARGV  1 id, 2 report; '' removes the entry, 3 '1' if this process shows the figures, 4 ms until both keys expire,
--       5 ms of silence after which an entry is removed, 6 most entries
-- Returns {ms since 1970, 1 if any process shows the figures, or 0}; for a process that shows them also the fields and
--         values of KEYS[1], its own included
-- Atomic so that the entries and their times belong to one moment. The hash has at most ARGV[6] entries, so reading
-- all of it is bounded.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
elseif redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 or redis.call('HLEN', KEYS[1]) < tonumber(ARGV[6]) then
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%d', now) .. ' ' .. ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
if ARGV[3] ~= '1' then
  return {now, redis.call('EXISTS', KEYS[2])}
end
redis.call('SET', KEYS[2], '1', 'PX', ARGV[4])
local reply, all = {now, 1}, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local stamp = string.match(all[i + 1], '^%d+') or '0'
  if tonumber(stamp) < now - tonumber(ARGV[5]) then
    redis.call('HDEL', KEYS[1], all[i])
  else
    reply[#reply + 1] = all[i]
    reply[#reply + 1] = all[i + 1]
  end
end
return reply
