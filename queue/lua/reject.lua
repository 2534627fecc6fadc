-- Gives leased tasks back: to run again after a delay, at once, or never.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 max_attempts, 2 max_dead; then per task: id, lease token as the meta holds it, mode (c counted, u uncounted, d dead now), delay in ms, reason
-- Returns a string with one letter per task: K done, S stale (another lease is current), M missing
-- Atomic because the token must still be the current one when the task changes sets.
--
-- The writes are per task here: failures are the rare case, and the batch is bounded by the caller.

local max_attempts = tonumber(ARGV[1])
local n = (#ARGV - 2) / 5
local now_us = queue_now()
local now_ms = math.floor(now_us / 1000)
local ceil_ms = math.ceil(now_us / 1000)
local status, later, failed, buried, ready = {}, {}, 0, 0, 0

-- A failed task without delay goes behind those that arrived before now; an unprocessed one that is handed
-- back goes to the front. The loop below runs backwards, so that the front keeps the given order.
local front -- the lowest score of a ready task, looked up once: for each task anew it takes most of the time
local function place(i, counted, priority)
  local score = now_us - priority * queue_age_us - n + i
  if not counted then
    front = front or queue_front(now_us, 0)
    score = math.min(score, front - 1)
  end
  front = front and math.min(front, score)
  return score
end

-- A key of another type must fail here, before the first write, and not after it. The keys of dead letters are checked
-- only if there will be one, because the other tasks do not need them.
redis.call('ZCARD', KEYS[1])
redis.call('LLEN', KEYS[7])
local held = {} -- of each task whose token is current: attempt, priority, options, and whether it dies
queue_each(n, function(from, to)
  local ids = {}
  for i = from, to do
    ids[i - from + 1] = ARGV[5 * i - 2]
  end
  local metas = redis.call('HMGET', KEYS[5], unpack(ids))
  for i = from, to do
    local meta, mode = metas[i - from + 1], ARGV[5 * i]
    if not meta then
      status[i] = 'M'
    elseif meta ~= ARGV[5 * i - 1] then
      status[i] = 'S'
    else
      local attempt, priority, _, _, options = queue_parse(meta)
      local dies = mode == 'd' or (mode == 'c' and attempt >= queue_max(options, max_attempts))
      if dies then
        redis.call('ZCARD', KEYS[10])
        redis.call('HLEN', KEYS[4])
      end
      held[i] = {attempt, priority, options, dies}
    end
  end
end)

local head, seen = queue_first(KEYS[2]), {}
for i = n, 1, -1 do
  local at = 5 * i - 2
  local id, mode, delay, reason = ARGV[at], ARGV[at + 2], tonumber(ARGV[at + 3]), ARGV[at + 4]
  if held[i] and seen[id] then -- given twice: the last one has ended the lease
    status[i] = 'S'
  elseif held[i] then
    status[i], seen[id] = 'K', true
    local attempt, priority, options, dies = unpack(held[i])
    redis.call('ZREM', KEYS[3], id)
    if mode == 'u' then
      attempt = attempt - 1
      if delay == 0 then
        options = options .. string.format(',b%d', now_us) -- its place will be in front of older ones
      end
    else
      failed = failed + 1
    end
    if dies then
      queue_bury(id, now_ms, attempt, priority, reason, options)
      buried = buried + 1
    else
      redis.call('HSET', KEYS[5], id, queue_meta(attempt, priority, 'R', reason, options))
      if delay > 0 then
        later[#later + 1] = {id, ceil_ms + delay}
      else
        redis.call('ZADD', KEYS[1], string.format('%d', place(i, mode == 'c', priority)), id)
        ready = ready + 1
      end
    end
  end
end

local places = {}
for i = #later, 1, -1 do -- in the order given
  redis.call('ZADD', KEYS[2], queue_delay(later[i][2], places), later[i][1])
end
if failed > 0 then
  queue_tally('failed', failed)
end
if buried > 0 then
  queue_buried(buried, tonumber(ARGV[2]))
end
local first = queue_first(KEYS[2])
if ready > 0 or (first and (not head or first < head)) then
  queue_wake(0)
end
return table.concat(status)
