-- Fragment: places in the dead letters, which are ordered by time of death in ms and then by id, byte by byte. A place
-- may be that of a letter that is gone.

-- queue_less(a, b) -> whether a sorts before b in a sorted set. `<` may compare by the server's locale.
local function queue_less(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- queue_dead_rank(at, id) -> how many letters are before the place, and whether its letter is there. at is a string. If it
-- is gone, the letters that died in that millisecond are read; one call buries at most 512.
local function queue_dead_rank(at, id)
  local rank = redis.call('ZRANK', KEYS[10], id)
  if rank and tonumber(redis.call('ZSCORE', KEYS[10], id)) == tonumber(at) then
    return rank, true
  end
  local before = redis.call('ZCOUNT', KEYS[10], '-inf', '(' .. at)
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', KEYS[10], at, at)) do
    if not queue_less(other, id) then
      break
    end
    before = before + 1
  end
  return before, false
end

-- queue_dead_behind(at, id) -> the rank of the first letter after the position
local function queue_dead_behind(at, id)
  local rank, there = queue_dead_rank(at, id)
  return there and rank + 1 or rank
end
