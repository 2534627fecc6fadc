-- Fragment: what this package's own scripts share. It follows fragment_enqueue.lua, and expects
-- KEYS 1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 counts, 9 paused (there while nothing is to be
-- taken), 10 dead.
--
-- A meta value is "attempt,priority[,option]*;" and then L<lease token>, R<reason of the last failure> or
-- D<reason of death>. A task that never was leased and has priority 0 and no options has none. The tag in
-- front of token and reason keeps a reason that looks like a token from ever passing for one. An option is
-- a letter and its value, free of "," and ";": y type, m maximum of attempts, t timeout in ms, n number of
-- entries in the payload, l size of a big payload in bytes. While the task is ready, b is since when in microseconds,
-- where its score says something else because it came back to the front.

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

-- queue_back(options) -> the value of b, or nil, and the options without it
local function queue_back(options)
  local since = string.match(options, ',b(%d+)')
  if not since then
    return nil, options
  end
  return tonumber(since), (string.gsub(options, ',b%d+', ''))
end

-- queue_tally(field, n) -> the new count. A corrupt counter must not stop a task.
local function queue_tally(field, n)
  return redis.pcall('HINCRBY', KEYS[8], field, n)
end

-- queue_max(options, default) -> after how many attempts the task is dead
local function queue_max(options, default)
  return tonumber(string.match(options, ',m(%d+)') or default)
end

-- queue_front(n) -> the first of n consecutive scores in front of every ready task. A task that is handed
-- back unprocessed keeps its place.
local function queue_front(now_us, n)
  local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  local score = now_us
  if head[2] then
    score = math.min(score, math.floor(tonumber(head[2])))
  end
  return score - n
end

-- queue_first(key) -> the lowest score of a sorted set in whole ms, or nil when it is empty
local function queue_first(key)
  local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return head[2] and math.floor(tonumber(head[2])) or nil
end

-- queue_next(now_ms) -> ms until the next delayed task falls due or the next lease ends, or nil when there is neither
local function queue_next(now_ms)
  local due, lease_end = queue_first(KEYS[2]), queue_first(KEYS[3])
  if due or lease_end then
    return math.max(0, math.min(due or lease_end, lease_end or due) - now_ms)
  end
end

-- queue_oldest(now_us) -> how long the ready task at the head has been waiting, in microseconds; 0 when there is none
local function queue_oldest(now_us)
  local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  if not head[1] then
    return 0
  end
  local _, priority = queue_parse(redis.call('HGET', KEYS[5], head[1]))
  return math.max(0, now_us - (tonumber(head[2]) + priority * queue_age_us))
end

-- A delayed task's score is its due time in ms, and as a fraction its place among the first 4000 that are due in that
-- millisecond, so that they become ready in the order they were added. Later ones share the last place. Microseconds
-- since 1970 with that fraction are exact in a double until the year 2041.
local queue_places = 4000

-- queue_delay(due_ms, last) -> the score of a task that is added to those due then. last remembers places within a call.
local function queue_delay(due_ms, last)
  if not last[due_ms] then
    local found = redis.call('ZREVRANGEBYSCORE', KEYS[2], string.format('(%d', due_ms + 1),
      string.format('%d', due_ms), 'WITHSCORES', 'LIMIT', 0, 1)
    last[due_ms] = found[2] and math.floor((tonumber(found[2]) - due_ms) * queue_places + 0.5) or -1
  end
  last[due_ms] = math.min(last[due_ms] + 1, queue_places - 1)
  return string.format('%.17g', due_ms + last[due_ms] / queue_places)
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
  redis.call('ZADD', KEYS[10], string.format('%d', now_ms), id)
  redis.call('HSET', KEYS[5], id, queue_meta(attempt, priority, 'D', reason, options))
  if queue_entries(options) > 1 then -- a dead letter counts as one entry
    queue_tally('extra', 1 - queue_entries(options))
  end
end

-- queue_forget(ids, metas) -> how many entries they had; removes what is known of tasks that are in no set any more.
-- metas has the meta of each, false where there is none.
local function queue_forget(ids, metas)
  local entries = #ids
  for i = 1, #ids do
    if metas[i] and string.find(metas[i], ',n', 1, true) then -- the others have one entry; saves parsing each
      local _, _, tag, _, options = queue_parse(metas[i])
      if tag ~= 'D' then
        entries = entries + queue_entries(options) - 1
      end
    end
  end
  redis.call('HDEL', KEYS[4], unpack(ids))
  redis.call('HDEL', KEYS[5], unpack(ids))
  if entries > #ids then
    queue_tally('extra', #ids - entries)
  end
  return entries
end

-- queue_buried(n, max_dead): counts n dead letters, and drops the oldest above the bound, with their bodies: at most n
-- and 512 more, if the bound was lowered, because Redis does nothing else meanwhile.
local function queue_buried(n, max_dead)
  queue_tally('died', n)
  local excess = math.min(redis.call('ZCARD', KEYS[10]) - max_dead, n + 512)
  while excess > 0 do
    local ids = redis.call('ZRANGE', KEYS[10], 0, math.min(excess, queue_chunk) - 1)
    redis.call('ZREM', KEYS[10], unpack(ids))
    queue_forget(ids, redis.call('HMGET', KEYS[5], unpack(ids)))
    excess = excess - #ids
  end
end
