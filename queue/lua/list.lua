-- Lists a page of the tasks of one state: ready and delayed in the order in which they are to run, leased by the end
-- of the lease, dead ones by the time of death, or any of them the other way.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 number of the state's key, 2 its name, 3 "1" for the other way, 4 time of death in ms and 5 id of the dead letter
--       that ends the page before (-1 and '': from the start), 6 the latest time of death in ms ('': any), 7 how many to
--       skip, 8 how many to return, at least 1, 9 how many bytes of each reason and no payloads ('': everything)
-- Returns what queue_rows does
-- Atomic so that each task comes with its own meta and body.

local key, down, skip, n = KEYS[tonumber(ARGV[1])], ARGV[3] == '1', tonumber(ARGV[7]), tonumber(ARGV[8])
local count = redis.call('ZCARD', key)
-- The ranks of the page: from..to-1.
local from, to = 0, count
if ARGV[6] ~= '' then
  to = redis.call('ZCOUNT', key, '-inf', ARGV[6])
end
if ARGV[4] ~= '-1' and down then
  to = math.min(to, (queue_dead_rank(ARGV[4], ARGV[5])))
elseif ARGV[4] ~= '-1' then
  from = queue_dead_behind(ARGV[4], ARGV[5])
end
if down then
  to = to - skip
  from = math.max(from, to - n)
else
  from = from + skip
  to = math.min(to, from + n)
end
if to <= from then
  return {}
end
local found
if down then
  found = redis.call('ZREVRANGE', key, count - to, count - from - 1, 'WITHSCORES')
else
  found = redis.call('ZRANGE', key, from, to - 1, 'WITHSCORES')
end
local ids, states, scores = {}, {}, {}
for i = 1, #found / 2 do
  ids[i], states[i], scores[i] = found[2 * i - 1], ARGV[2], tonumber(found[2 * i])
end
return queue_rows(ids, states, scores, tonumber(ARGV[9]))
