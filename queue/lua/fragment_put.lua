-- Fragment of enqueue.lua and complete.lua: queue_put(first, n, max_length) -> one letter per task in a
-- table, as enqueue.lua returns them. It adds the n tasks whose id, payload, due time in ms, priority and
-- options begin at ARGV[first]. It follows fragment_common.lua.

local function queue_put(first, n, max_length)
  local function arg(i, field)
    return ARGV[first + 5 * (i - 1) + field - 1]
  end
  local ids = {}
  for i = 1, n do
    ids[i] = arg(i, 1)
  end
  local now_us = queue_now()
  local now_ms = now_us / 1000
  local room = queue_room(0, max_length)
  local known = queue_known(0, n, ids)

  local status, seen = {}, {}
  local ready, payloads, priorities, extras, r = {}, {}, {}, {}, 0
  local later, bodies, metas, places, d, more = {}, {}, {}, {}, 0, 0
  for i = 1, n do
    local id = ids[i]
    if known[i] or seen[id] then
      status[i] = 'D'
    elseif room < queue_entries(arg(i, 5)) then
      status[i] = 'F'
    else
      status[i] = 'K'
      seen[id] = true
      local due, priority, options = tonumber(arg(i, 3)), tonumber(arg(i, 4)), arg(i, 5)
      room = room - queue_entries(options)
      if due <= now_ms then
        r = r + 1
        ready[r], payloads[r], priorities[r], extras[r] = id, arg(i, 2), priority, options
      else
        later[2 * d + 1], later[2 * d + 2] = queue_delay(due, places), id
        bodies[2 * d + 1], bodies[2 * d + 2] = id, arg(i, 2)
        metas[2 * d + 1], metas[2 * d + 2] = id, queue_meta(0, priority, 'R', '', queue_sized(options, arg(i, 2)))
        d = d + 1
        more = more + queue_entries(options) - 1
      end
    end
  end

  queue_add(0, now_us, r, ready, payloads, priorities, extras)
  if d == 0 then
    return status
  end
  local head = queue_first(KEYS[2])
  queue_each(d, function(from, to)
    redis.call('ZADD', KEYS[2], unpack(later, 2 * from - 1, 2 * to))
    redis.call('HSET', KEYS[4], unpack(bodies, 2 * from - 1, 2 * to))
    redis.call('HSET', KEYS[5], unpack(metas, 2 * from - 1, 2 * to))
  end)
  if more > 0 then
    queue_tally('extra', more)
  end
  -- A sleeper knows the earliest due time of when it fell asleep; an earlier one must wake it.
  local first = queue_first(KEYS[2])
  if not head or first < head then
    queue_wake(0)
  end
  return status
end
