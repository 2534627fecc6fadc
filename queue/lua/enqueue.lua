-- Adds tasks: those that are due become ready, the others delayed.
--
-- KEYS  1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead
-- ARGV  1 max_length; then per task: id, payload, due in ms since 1970 (0: now), priority
-- Returns a string with one letter per task: K added, D duplicate (the id exists in any state), F full
-- Atomic because the room and the ids must not change between the look and the write; a task is
-- either written whole or not at all.

local n = (#ARGV - 1) / 4
local ids = {}
for i = 1, n do
  ids[i] = ARGV[4 * i - 2]
end
local now_us = queue_now()
local now_ms = now_us / 1000
local room = queue_room(0, tonumber(ARGV[1]))
local known = queue_known(0, n, ids)
local head = queue_first(KEYS[2])

local status, seen = {}, {}
local ready, payloads, priorities, r = {}, {}, {}, 0
local later, bodies, metas, d = {}, {}, {}, 0
for i = 1, n do
  local id = ids[i]
  if known[i] or seen[id] then
    status[i] = 'D'
  elseif room < 1 then
    status[i] = 'F'
  else
    status[i] = 'K'
    seen[id] = true
    room = room - 1
    local due, priority = tonumber(ARGV[4 * i]), tonumber(ARGV[4 * i + 1])
    if due <= now_ms then
      r = r + 1
      ready[r], payloads[r], priorities[r] = id, ARGV[4 * i - 1], priority
    else
      later[2 * d + 1], later[2 * d + 2] = ARGV[4 * i], id
      bodies[2 * d + 1], bodies[2 * d + 2] = id, ARGV[4 * i - 1]
      metas[2 * d + 1], metas[2 * d + 2] = id, queue_meta(0, priority, 'R', '')
      d = d + 1
    end
  end
end

queue_add(0, now_us, r, ready, payloads, priorities)
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
