-- Lists dead letters from a place on without their payloads, which may be large.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 'up' from the earliest to the latest, or 'down' the other way, 2 time of death in ms and 3 id of the last letter
--       of the page before (-1 and '': from the start), 4 how many to skip, 5 how many to return, at least 1, 6 bytes to
--       return of each reason
-- Returns strings, per letter: id, time of death in ms, attempt, the start of the reason, options
-- Atomic so that each letter comes with its own meta.

local skip, n, clip = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local found
if ARGV[1] == 'up' then
  local rank = queue_dead_behind(ARGV[2], ARGV[3]) + skip
  found = redis.call('ZRANGE', KEYS[10], rank, rank + n - 1, 'WITHSCORES')
else
  local before = ARGV[2] == '-1' and redis.call('ZCARD', KEYS[10]) or queue_dead_rank(ARGV[2], ARGV[3])
  local from = redis.call('ZCARD', KEYS[10]) - before + skip
  found = redis.call('ZREVRANGE', KEYS[10], from, from + n - 1, 'WITHSCORES')
end
local reply, filled = {}, 0
queue_each(#found / 2, function(first, last)
  local ids = {}
  for i = first, last do
    ids[i - first + 1] = found[2 * i - 1]
  end
  local metas = redis.call('HMGET', KEYS[5], unpack(ids))
  for i = 1, #ids do
    local attempt, _, _, text, options = queue_parse(metas[i])
    reply[filled + 1] = ids[i]
    reply[filled + 2] = string.format('%d', tonumber(found[2 * (first + i - 1)]))
    reply[filled + 3] = string.format('%d', attempt)
    reply[filled + 4] = string.sub(text, 1, clip)
    reply[filled + 5] = options
    filled = filled + 5
  end
end)
return reply
