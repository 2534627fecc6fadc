-- Lists a page of the tasks of one state: ready and delayed in the order in which they are to run, leased by the end
-- of the lease, dead ones by the time of death and then by id, byte by byte, or any of them the other way.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 number of the state's key, 2 its name, 3 "1" for the other way, 4 time of death in ms and 5 id of the dead letter
--       that ends the page before, which may be gone (-1 and '': from the start), 6 the latest time of death in ms ('': any),
--       7 how many to skip, 8 how many to return at most, 9 max_bytes and 10 clip as in fragment_list.lua (clip '':
--       everything)
-- Returns how many follow those returned, as a string, and the rows of fragment_list.lua
-- Atomic so that each task comes with its own meta and body.

local key, down, skip, n = KEYS[tonumber(ARGV[1])], ARGV[3] == '1', tonumber(ARGV[7]), tonumber(ARGV[8])

-- less(a, b) -> whether a sorts before b in a sorted set. `<` may compare by the server's locale.
local function less(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- rank_of(at, id) -> how many letters are before the place, and whether its letter is there. at is a string. If it
-- is gone, the letters that died in that millisecond are read; one call buries at most 512.
local function rank_of(at, id)
  local rank = redis.call('ZRANK', key, id)
  if rank and tonumber(redis.call('ZSCORE', key, id)) == tonumber(at) then
    return rank, true
  end
  local before = redis.call('ZCOUNT', key, '-inf', '(' .. at)
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', key, at, at)) do
    if not less(other, id) then
      break
    end
    before = before + 1
  end
  return before, false
end

local count = redis.call('ZCARD', key)
-- The ranks of what is selected: from..to-1.
local from, to = 0, count
if ARGV[6] ~= '' then
  to = redis.call('ZCOUNT', key, '-inf', ARGV[6])
end
if ARGV[4] ~= '-1' then
  local rank, there = rank_of(ARGV[4], ARGV[5])
  if down then
    to = math.min(to, rank)
  else
    from = there and rank + 1 or rank
  end
end
local left = math.max(0, to - from - skip)
n = math.min(n, left)
local found = {}
if n > 0 and down then
  found = redis.call('ZREVRANGE', key, count - to + skip, count - to + skip + n - 1, 'WITHSCORES')
elseif n > 0 then
  found = redis.call('ZRANGE', key, from + skip, from + skip + n - 1, 'WITHSCORES')
end
local ids, states, scores = {}, {}, {}
for i = 1, #found / 2 do
  ids[i], states[i], scores[i] = found[2 * i - 1], ARGV[2], tonumber(found[2 * i])
end
local reply = {''}
reply[1] = string.format('%d', left - queue_rows(reply, ids, states, scores, tonumber(ARGV[9]), tonumber(ARGV[10])))
return reply
