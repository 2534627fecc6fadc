-- Fragment: adds ready tasks to a queue from inside another script, so that the caller's own
-- change and the task it causes are one atomic step. It is prepended to the composing script.
--
-- KEYS[o+1 .. o+8] are what Queue.EnqueueKeys returns, in its order, anywhere in the composing
-- script's KEYS: ready, delayed, leased, body, meta, clock, wake, counts. `o` is how many keys precede them.
--
-- queue_room(o, max_length)   -> how many entries may still be added, one per ordinary task; a read. Ask before the
--                             first write.
-- queue_known(o, n, ids)      -> table: known[i] is true where ids[i] exists in any state; a read.
-- queue_add(o, now_us, n, ids, payloads [, priorities [, options]])
--                             -> nothing; adds ids[1..n] in that order and wakes a worker. Writes.
--    now_us is Redis TIME in microseconds as a number. The ids have 1 to 255 bytes and must be new to the queue
--    (queue_known), and their entries must not exceed queue_room: the fragment does not check either, so that it never
--    fails half-way. options[i] is '' or begins with a comma; ',n51' says that the task's payload has 51 entries, and
--    ',ykind' that its type is kind.
-- queue_wake(o)               -> nothing; leaves one token on the wake list unless one is there. Writes.
--
-- Only names that begin with queue_ are defined.

-- One level of priority is worth this much waiting: a task of priority 0 overtakes fresh ones of
-- priority 9 once it is nine minutes older, so none starves.
local queue_age_us = 60000000

-- unpack is bounded by the Lua stack, which is smallest in the embedded engine: 100 pairs a call.
local queue_chunk = 100

-- Redis starts small sets and hashes as packed lists, in which adding a batch costs its square: half of a
-- script's time where batches follow each other and each empties the set. A member too long for a packed
-- list makes it start with the real structure. No id is as long, and it is gone before the script ends.
local queue_pad = string.rep('-', 256)
local queue_pad_from = 8

-- A payload above this many bytes is noted in the task's options, so that a fetch bounds what it reads.
local queue_big = 4096

-- queue_sized(options, payload) -> the options, with the payload's size where it is big
local function queue_sized(options, payload)
  return #payload > queue_big and options .. ',l' .. #payload or options
end

-- queue_entries(options) -> how many entries the payload of a task with these options has
local function queue_entries(options)
  if options == '' then -- most tasks; saves the match
    return 1
  end
  return tonumber(string.match(options, ',n(%d+)') or 1)
end

-- queue_extra(o) -> the entries of all tasks beyond one per task, from the field 'extra' of the counts; 0 if the
-- counts are missing or damaged.
local function queue_extra(o)
  local extra = redis.pcall('HGET', KEYS[o + 8], 'extra')
  return type(extra) == 'string' and math.max(0, tonumber(extra) or 0) or 0
end

local function queue_room(o, max_length)
  -- A key of another type at one of these names must fail here, before the composing script's first
  -- write, and not in queue_add after it.
  redis.call('HLEN', KEYS[o + 4])
  redis.call('HLEN', KEYS[o + 5])
  redis.call('STRLEN', KEYS[o + 6])
  redis.call('LLEN', KEYS[o + 7])
  return max_length - redis.call('ZCARD', KEYS[o + 1]) - redis.call('ZCARD', KEYS[o + 2])
    - redis.call('ZCARD', KEYS[o + 3]) - queue_extra(o)
end

local function queue_known(o, n, ids)
  local known = {}
  for from = 1, n, queue_chunk do
    local to = math.min(from + queue_chunk - 1, n)
    -- A task has a body, and has meta as soon as it was leased once. Looking at both also finds
    -- the task whose body was deleted by hand.
    local bodies = redis.call('HMGET', KEYS[o + 4], unpack(ids, from, to))
    local metas = redis.call('HMGET', KEYS[o + 5], unpack(ids, from, to))
    for i = from, to do
      known[i] = (bodies[i - from + 1] or metas[i - from + 1]) and true or false
    end
  end
  return known
end

local function queue_wake(o)
  -- One token is enough: a worker it wakes leaves another when it cannot take everything.
  if redis.call('LLEN', KEYS[o + 7]) == 0 then
    redis.call('RPUSH', KEYS[o + 7], '1')
  end
end

local function queue_add(o, now_us, n, ids, payloads, priorities, options)
  if n < 1 then
    return
  end
  -- The stored last arrival keeps the order of tasks that arrive within one microsecond, and over a
  -- clock that steps back. Microseconds since 1970 stay exact in a double until the year 2255.
  local at = tonumber(redis.call('GET', KEYS[o + 6]) or '0') or 0
  if at < now_us then
    at = now_us - 1
  end
  local padded = n >= queue_pad_from
  if padded then
    redis.call('ZADD', KEYS[o + 1], '0', queue_pad)
  end
  local more = 0
  for from = 1, n, queue_chunk do
    local to = math.min(from + queue_chunk - 1, n)
    local scores, bodies, metas, k, m = {}, {}, {}, 0, 0
    for i = from, to do
      local id = ids[i]
      local score = at + i
      local priority = priorities and priorities[i] or 0
      local extra = queue_sized(options and options[i] or '', payloads[i])
      if priority > 0 or extra ~= '' then
        more = more + queue_entries(extra) - 1
        score = score - priority * queue_age_us
        metas[m + 1] = id
        metas[m + 2] = '0,' .. priority .. extra .. ';R'
        m = m + 2
      end
      scores[k + 1] = string.format('%d', score)
      scores[k + 2] = id
      bodies[k + 1] = id
      bodies[k + 2] = payloads[i]
      k = k + 2
    end
    redis.call('ZADD', KEYS[o + 1], unpack(scores, 1, k))
    redis.call('HSET', KEYS[o + 4], unpack(bodies, 1, k))
    if m > 0 then
      redis.call('HSET', KEYS[o + 5], unpack(metas, 1, m))
    end
  end
  if padded then
    redis.call('ZREM', KEYS[o + 1], queue_pad)
  end
  redis.call('SET', KEYS[o + 6], string.format('%d', at + n))
  if more > 0 then
    redis.pcall('HINCRBY', KEYS[o + 8], 'extra', more)
  end
  queue_wake(o)
end
