-- Fragment: what this package's own scripts share. It follows fragment_enqueue.lua, and expects
-- KEYS 1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead, 9 unique, 10 unique_until,
-- 11 paused (there while nothing is to be taken), 12 done, 13 counts, 14 rate.
--
-- A meta value is "attempt,priority[,option]*;" and then L<lease token>, R<reason of the last failure>,
-- D<reason of death> or A, for one that was acknowledged and is kept. A task that never was leased and has priority 0 and no options has none. The tag in
-- front of token and reason keeps a reason that looks like a token from ever passing for one. An option is
-- a letter and its value, free of "," and ";": y type, m maximum of attempts, t timeout in ms, u unique key,
-- w how long that is taken in ms (until the task is done without it), f free it when the task is dead. While the
-- task is ready, b is since when in microseconds, where its score says something else because it came back to the front.
--
-- The hash unique holds key -> "id;until", until being ms or 0; unique_until orders those that have one.

-- queue_now() -> Redis TIME in microseconds
local function queue_now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- queue_parse(meta) -> attempt, priority, tag, text, options; the defaults where there is no readable
-- meta. options is "" or begins with a comma.
local function queue_parse(meta)
  if meta then
    local attempt, priority, options, tag, text = string.match(meta, '^(%d+),(%d+)([^;]*);(.)(.*)$')
    if attempt then
      return tonumber(attempt), tonumber(priority), tag, text, options
    end
  end
  return 0, 0, 'R', '', ''
end

-- queue_meta(attempt, priority, tag, text, options) -> the meta value
local function queue_meta(attempt, priority, tag, text, options)
  return string.format('%d,%d', attempt, priority) .. options .. ';' .. tag .. text
end

-- queue_back(options) -> what b says, or nil, and the options without it
local function queue_back(options)
  local since = string.match(options, ',b(%d+)')
  if not since then
    return nil, options
  end
  return tonumber(since), (string.gsub(options, ',b%d+', ''))
end

-- queue_tally(field, n) -> what the statistics count now. What is wrong with them must not stop a task.
local function queue_tally(field, n)
  return redis.pcall('HINCRBY', KEYS[13], field, n)
end

-- queue_ended(meta) -> what to answer to whoever comes with a lease token that is not in this meta: M where the
-- task is done and only kept, as if it were gone, else S
local function queue_ended(meta)
  local _, _, tag = queue_parse(meta)
  return tag == 'A' and 'M' or 'S'
end

-- queue_max(options, default) -> after how many attempts the task is dead
local function queue_max(options, default)
  return tonumber(string.match(options, ',m(%d+)') or default)
end

-- queue_owner(key, now_ms) -> the "id;until" that holds a unique key at that time, or nil
local function queue_owner(key, now_ms)
  local value = redis.call('HGET', KEYS[9], key)
  local ends = value and tonumber(string.match(value, ';(%d+)$') or '0')
  if value and (ends == 0 or ends > now_ms) then
    return value
  end
  return nil
end

-- queue_free(id, options): gives up the unique key that the task holds until it is done
local function queue_free(id, options)
  local key = string.match(options, ',u([^,]+)')
  if key and not string.find(options, ',w', 1, true) and redis.call('HGET', KEYS[9], key) == id .. ';0' then
    redis.call('HDEL', KEYS[9], key)
  end
end

-- queue_front(n) -> the first of n consecutive scores in front of every ready task. What was taken
-- and came back unworked keeps its turn.
local function queue_front(now_us, n)
  local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  local score = now_us
  if head[2] then
    score = math.min(score, math.floor(tonumber(head[2])))
  end
  return score - n
end

-- queue_first(key) -> the lowest score of a sorted set, or nil when it is empty
local function queue_first(key)
  local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return head[2] and tonumber(head[2]) or nil
end

-- queue_freed(): a lease ended. Where the number of leases is limited, workers sleep although tasks are ready.
local function queue_freed()
  if redis.call('ZCARD', KEYS[1]) > 0 then
    queue_wake(0)
  end
end

-- queue_each(n, f) calls f(from, to) for 1..n in chunks that unpack can take
local function queue_each(n, f)
  for from = 1, n, queue_chunk do
    f(from, math.min(from + queue_chunk - 1, n))
  end
end

-- queue_bury(id, now_ms, attempt, priority, reason, options): the task is dead. The caller has taken it out of its set.
local function queue_bury(id, now_ms, attempt, priority, reason, options)
  options = select(2, queue_back(options))
  redis.call('ZADD', KEYS[8], string.format('%d', now_ms), id)
  redis.call('HSET', KEYS[5], id, queue_meta(attempt, priority, 'D', reason, options))
  if string.find(options, ',f', 1, true) then
    queue_free(id, options)
  end
end

-- queue_forget(ids, from, to): removes what is known of tasks that are in no set any more.
local function queue_forget(ids, from, to)
  local metas = redis.call('HMGET', KEYS[5], unpack(ids, from, to))
  for i = from, to do
    local _, _, _, _, options = queue_parse(metas[i - from + 1])
    queue_free(ids[i], options)
  end
  redis.call('HDEL', KEYS[4], unpack(ids, from, to))
  redis.call('HDEL', KEYS[5], unpack(ids, from, to))
end

-- queue_buried(n, max_dead): counts n dead letters, and drops the oldest above the bound, with their bodies. A
-- script that buries trims what it buried, so the work is bounded by its own batch.
local function queue_buried(n, max_dead)
  queue_tally('died', n)
  local excess = redis.call('ZCARD', KEYS[8]) - max_dead
  while excess > 0 do
    local ids = redis.call('ZRANGE', KEYS[8], 0, math.min(excess, queue_chunk) - 1)
    redis.call('ZREM', KEYS[8], unpack(ids))
    queue_forget(ids, 1, #ids)
    excess = excess - #ids
  end
end
