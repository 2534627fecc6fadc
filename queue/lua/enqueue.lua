-- Adds tasks: those that are due become ready, the others delayed.
--
-- KEYS  1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead, 9 unique, 10 unique_until, 11 paused
-- ARGV  1 max_length; then per task: id, payload, due in ms since 1970 (0: now), priority, options (see
--       fragment_common.lua)
-- Returns a string with one letter per task: K added, D duplicate (the id exists in any state, or the unique
--       key is taken), F full
-- Atomic because the room and the ids must not change between the look and the write; a task is
-- either written whole or not at all.

local n = (#ARGV - 1) / 5
local ids = {}
for i = 1, n do
  ids[i] = ARGV[5 * i - 3]
end
local now_us = queue_now()
local now_ms = now_us / 1000
local room = queue_room(0, tonumber(ARGV[1]))
local known = queue_known(0, n, ids)
local head = queue_first(KEYS[2])

-- Unique keys whose time is over go, a few at each call.
local swept = false
local function sweep()
  if swept then
    return
  end
  swept = true
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', KEYS[10], '-inf', string.format('%d', now_ms), 'LIMIT', 0, 64)) do
    redis.call('ZREM', KEYS[10], key)
    redis.call('HDEL', KEYS[9], key)
  end
end

-- taken(id, options) -> whether another task has the unique key; otherwise it is this one's. It is the last
-- check of a task, so that one that is refused leaves no mark.
local function taken(id, options)
  local key = string.match(options, ',u([^,]+)')
  if not key then
    return false
  end
  sweep()
  local value = redis.call('HGET', KEYS[9], key)
  local ends = value and tonumber(string.match(value, ';(%d+)$') or '0')
  if value and (ends == 0 or ends > now_ms) then
    return true
  end
  local life = string.match(options, ',w(%d+)')
  local till = life and string.format('%d', math.ceil(now_ms) + tonumber(life)) or '0'
  redis.call('HSET', KEYS[9], key, id .. ';' .. till)
  if life then
    redis.call('ZADD', KEYS[10], till, key)
  end
  return false
end

local status, seen = {}, {}
local ready, payloads, priorities, extras, r = {}, {}, {}, {}, 0
local later, bodies, metas, d = {}, {}, {}, 0
for i = 1, n do
  local id = ids[i]
  if known[i] or seen[id] then
    status[i] = 'D'
  elseif room < 1 then
    status[i] = 'F'
  elseif taken(id, ARGV[5 * i + 1]) then
    status[i] = 'D'
  else
    status[i] = 'K'
    seen[id] = true
    room = room - 1
    local due, priority, options = tonumber(ARGV[5 * i - 1]), tonumber(ARGV[5 * i]), ARGV[5 * i + 1]
    if due <= now_ms then
      r = r + 1
      ready[r], payloads[r], priorities[r], extras[r] = id, ARGV[5 * i - 2], priority, options
    else
      later[2 * d + 1], later[2 * d + 2] = ARGV[5 * i - 1], id
      bodies[2 * d + 1], bodies[2 * d + 2] = id, ARGV[5 * i - 2]
      metas[2 * d + 1], metas[2 * d + 2] = id, queue_meta(0, priority, 'R', '', options)
      d = d + 1
    end
  end
end

queue_add(0, now_us, r, ready, payloads, priorities, extras)
queue_each(d, function(from, to)
  redis.call('ZADD', KEYS[2], unpack(later, 2 * from - 1, 2 * to))
  redis.call('HSET', KEYS[4], unpack(bodies, 2 * from - 1, 2 * to))
  redis.call('HSET', KEYS[5], unpack(metas, 2 * from - 1, 2 * to))
end)
if d > 0 then
  -- A sleeper knows the earliest due time of when it fell asleep; an earlier one must wake it.
  local first = queue_first(KEYS[2])
  if not head or first < head then
    queue_wake(0)
  end
end
return table.concat(status)
