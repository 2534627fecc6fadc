-- Takes ready tasks of up to n entries under one lease, after reclaiming expired leases and promoting what is due.
-- If the clock was set back, it first shortens the leases that would end too late.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 n, 2 lease in ms, 3 lease token, 4 bound of reclaims and of promotions, 5 max_attempts,
--       6 max_dead, 7 horizon in ms: a worker must be waiting for any task that falls due sooner than this,
--       8 how many bytes of payload to take at most, though at least one task
-- A paused queue gives nothing, and moves nothing.
--
-- Returns strings: "1" where another call would find tasks now, else "0"; ms until the next delayed task or lease end
--       falls due, "-1" where there is none; how many more payloads than tasks in a state there are, which is 0 unless a
--       fault has left tasks in no state; how long the tasks were ready, "<number of a task>:<microseconds>,..." for
--       up to 16 of them, each also for those since the one before; how many expired leases were reclaimed; per such
--       lease: id, "attempt,priority[,option]*", "1" where the task is a dead letter now, else "0"; then per task: id,
--       payload, "attempt,priority[,option]*"
-- Atomic because a task must leave one set and enter the other as one step, and because a lease that expired
-- must be reclaimed by exactly one worker.

local n, bound = tonumber(ARGV[1]), tonumber(ARGV[4])
local max_attempts, max_dead, max_bytes = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8])
local now_us = queue_now()
local now_ms = math.floor(now_us / 1000)
local buried, given = 0, 0
local reply, filled = {'0', '-1', '0', '', '0'}, 5

local function bury(id, attempt, priority, reason, options)
  queue_bury(id, now_ms, attempt, priority, reason, options)
  buried = buried + 1
end

-- Every part removes before it adds. A Redis at its memory limit refuses a script whose first write adds,
-- and lets one through that has removed something; a full one can so be drained.

-- If the clock was set back, it is behind the last arrival, and the leases of dead workers would last longer by the
-- difference. If all workers have the same lease, none relies on more than
-- a full one from now. Arrivals of one microsecond are stored as
-- consecutive ones, so a second is allowed.
local function shorten()
  local last = redis.pcall('GET', KEYS[6])
  if type(last) ~= 'string' or (tonumber(last) or 0) < now_us + 1000000 then
    return
  end
  local latest = string.format('%d', math.ceil(now_us / 1000) + tonumber(ARGV[2]))
  local ids = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. latest, '+inf', 'LIMIT', 0, bound)
  queue_each(#ids, function(from, to)
    local leased, k = {}, 0
    for i = from, to do
      leased[k + 1], leased[k + 2] = latest, ids[i]
      k = k + 2
    end
    redis.call('ZREM', KEYS[3], unpack(ids, from, to))
    redis.call('ZADD', KEYS[3], unpack(leased, 1, k))
  end)
end

-- Expired leases go back to the front: they had their turn. Rewriting meta ends the old token.
local function reclaim()
  local ids = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now_ms, 'LIMIT', 0, bound)
  if #ids == 0 then
    return
  end
  local tasks = {} -- of each: attempt, priority, options, and whether it dies
  queue_each(#ids, function(from, to)
    local metas = redis.call('HMGET', KEYS[5], unpack(ids, from, to))
    for i = from, to do
      local attempt, priority, _, _, options = queue_parse(metas[i - from + 1])
      local dies = attempt >= queue_max(options, max_attempts)
      if dies then
        redis.call('ZCARD', KEYS[10]) -- before anything is reclaimed
      end
      tasks[i] = {attempt, priority, options, dies}
    end
  end)
  reply[5] = string.format('%d', #ids)
  local front = queue_front(now_us, #ids)
  local back = string.format(',b%d', now_us)
  queue_each(#ids, function(from, to)
    queue_tally('failed', redis.call('ZREM', KEYS[3], unpack(ids, from, to)))
    local ready, fresh, k = {}, {}, 0
    for i = from, to do
      local attempt, priority, options, dies = unpack(tasks[i])
      reply[filled + 1], reply[filled + 2], reply[filled + 3] = ids[i], string.format('%d,%d', attempt, priority) .. options, '0'
      filled = filled + 3
      if dies then
        bury(ids[i], attempt, priority, 'lease expired', options)
        reply[filled] = '1'
      else
        local score = math.min(front + i - 1, now_us - priority * queue_age_us)
        ready[k + 1], ready[k + 2] = string.format('%d', score), ids[i]
        fresh[k + 1], fresh[k + 2] = ids[i], queue_meta(attempt, priority, 'R', 'lease expired', options .. back)
        k = k + 2
      end
    end
    if k > 0 then
      redis.call('ZADD', KEYS[1], unpack(ready, 1, k))
      redis.call('HSET', KEYS[5], unpack(fresh, 1, k))
    end
  end)
end

-- A delayed task arrives when it falls due, however late it is promoted.
local function promote()
  local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('(%d', now_ms + 1), 'WITHSCORES', 'LIMIT', 0, bound)
  queue_each(#due / 2, function(from, to)
    local ids, ready, k = {}, {}, 0
    for i = from, to do
      k = k + 1
      ids[k] = due[2 * i - 1]
    end
    local metas = redis.call('HMGET', KEYS[5], unpack(ids))
    for i = 1, k do
      local _, priority = queue_parse(metas[i])
      local at = tonumber(due[2 * (from + i - 1)])
      local ms = math.floor(at)
      at = ms * 1000 + math.floor((at - ms) * queue_places + 0.5) / queue_places * 1000
      ready[2 * i - 1], ready[2 * i] = string.format('%.17g', at - priority * queue_age_us), ids[i]
    end
    redis.call('ZREM', KEYS[2], unpack(ids))
    redis.call('ZADD', KEYS[1], unpack(ready))
  end)
end

-- How long tasks waited. Up to 16 tasks are all counted; of more, 16 evenly spaced ones are counted, each with
-- a weight. A bucket has the number of its upper bound in ms; one more bucket has no bound.
local wait_bounds = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 60000, 600000}
local ranks, weights, arrivals, waits, ends, measured = {}, {}, {}, {}, {}, {}

local function sample(ids)
  local picked, n, m, from = {}, #ids, math.min(#ids, 16), 0
  for j = 1, m do
    local to = math.floor(j * n / m)
    local rank = math.floor((from + to + 1) / 2)
    ranks[j], weights[j], picked[j] = rank, to - from, ids[rank]
    ends[j] = to
    from = to
  end
  arrivals = redis.call('ZMSCORE', KEYS[1], unpack(picked))
end

local function waited(j, meta)
  local since = tonumber(arrivals[j])
  if meta then
    local _, priority, _, _, options = queue_parse(meta)
    since = queue_back(options) or since + priority * queue_age_us
  end
  measured[#measured + 1] = string.format('%d:%d', ends[j], math.max(0, now_us - since))
  local ms, bucket = (now_us - since) / 1000, 1
  while wait_bounds[bucket] and ms > wait_bounds[bucket] do
    bucket = bucket + 1
  end
  waits[bucket] = (waits[bucket] or 0) + weights[j]
end

-- What to take: the first tasks that have n entries and max_bytes of payload together at most, but at least one. A
-- payload that is not noted as big counts as the largest of those. One page of tasks is read after another, because
-- tasks with many entries are few.
local function fetchable()
  local ids, metas, entries, bytes, page = {}, {}, 0, 0, 16
  while entries < n do
    local more = redis.call('ZRANGE', KEYS[1], #ids, #ids + math.min(page, n - entries) - 1)
    if #more == 0 then
      break
    end
    local found = redis.call('HMGET', KEYS[5], unpack(more))
    for i = 1, #more do
      local size, options = queue_big, ''
      if found[i] then
        options = string.match(found[i], '^[^;]*')
        size = tonumber(string.match(options, ',l(%d+)') or size)
      end
      entries, bytes = entries + queue_entries(options), bytes + size
      if (entries > n or bytes > max_bytes) and #ids > 0 then
        return ids, metas
      end
      ids[#ids + 1] = more[i]
      metas[#ids] = found[i]
    end
    page = queue_chunk
  end
  return ids, metas
end

local function take()
  local ids, metas = fetchable()
  if #ids == 0 then
    return
  end
  sample(ids)
  local bodies = {}
  queue_each(#ids, function(from, to)
    local found = redis.call('HMGET', KEYS[4], unpack(ids, from, to))
    for i = from, to do
      bodies[i] = found[i - from + 1]
      if not bodies[i] then
        redis.call('ZCARD', KEYS[10]) -- it becomes a dead letter
      end
    end
  end)
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #ids - 1)
  local padded = #ids >= queue_pad_from
  if padded then
    redis.call('ZADD', KEYS[3], '0', queue_pad)
    redis.call('HSET', KEYS[5], queue_pad, '')
  end
  local lease_end = string.format('%d', math.ceil(now_us / 1000) + tonumber(ARGV[2]))
  local token = ';L' .. ARGV[3]
  local first = '1,0' .. token -- most tasks are at their first attempt, without priority
  local sampled = 1
  queue_each(#ids, function(from, to)
    local leased, fresh, k = {}, {}, 0
    for i = from, to do
      local id, body, meta = ids[i], bodies[i], metas[i]
      if not body then
        local attempt, priority, _, _, options = queue_parse(meta)
        bury(id, attempt, priority, 'body missing', options)
      else
        local head, value = '1,0', first
        if meta then
          local attempt, priority, _, _, options = queue_parse(meta)
          local _, plain = queue_back(options)
          head = string.format('%d,%d', attempt + 1, priority) .. plain
          value = head .. token
        end
        leased[k + 1], leased[k + 2] = lease_end, id
        fresh[k + 1], fresh[k + 2] = id, value
        k = k + 2
        reply[filled + 1], reply[filled + 2], reply[filled + 3] = id, body, head
        filled = filled + 3
        given = given + 1
      end
    end
    if k > 0 then
      redis.call('ZADD', KEYS[3], unpack(leased, 1, k))
      redis.call('HSET', KEYS[5], unpack(fresh, 1, k))
    end
    while sampled <= #ranks and ranks[sampled] <= to do
      local i = ranks[sampled]
      if bodies[i] then
        waited(sampled, metas[i])
      end
      sampled = sampled + 1
    end
  end)
  for bucket, n in pairs(waits) do
    queue_tally('w' .. bucket, n)
  end
  reply[4] = table.concat(measured, ',')
  if padded then
    redis.call('ZREM', KEYS[3], queue_pad)
    redis.call('HDEL', KEYS[5], queue_pad)
  end
end

if redis.call('EXISTS', KEYS[9]) == 1 then
  return reply
end
-- A key of another type must fail here, before the first write, and not after it. The dead letters are checked only
-- before there are new ones, because the other tasks do not need that key.
redis.call('ZCARD', KEYS[1])
redis.call('ZCARD', KEYS[2])
redis.call('HLEN', KEYS[4])
redis.call('LLEN', KEYS[7])
shorten()
reclaim()
promote()
take()
if buried > 0 then
  queue_buried(buried, max_dead)
end

-- Rounded up by the part of the millisecond already gone, so that a worker that waits this long is not early.
local next_ms = queue_next(now_ms)
local left_ready = redis.call('ZCARD', KEYS[1])
local more = next_ms == 0 or left_ready > 0
local dead = redis.pcall('ZCARD', KEYS[10])
if type(dead) == 'number' then -- a key of another type must not stop the tasks that were taken
  local bodies = redis.call('HLEN', KEYS[4])
  reply[3] = string.format('%d', bodies - left_ready - redis.call('ZCARD', KEYS[2]) - redis.call('ZCARD', KEYS[3]) - dead)
  if bodies == 0 then -- a fault may have removed tasks that were counted
    redis.pcall('HDEL', KEYS[8], 'extra')
  end
end
if next_ms then
  reply[2] = string.format('%d', next_ms)
end
if more then
  reply[1] = '1'
end
-- This worker is about to be busy, so another has to take the rest, or to watch the next due time.
if more or (given > 0 and next_ms and next_ms < tonumber(ARGV[7])) then
  queue_wake(0)
end
return reply
