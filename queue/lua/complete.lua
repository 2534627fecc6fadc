-- Acknowledges leased tasks and adds those that are to follow each, as one step per task.
--
-- KEYS  1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead, 9 unique, 10 unique_until, 11 paused,
--       12 done, 13 counts, 14 rate; then the same of the queue to which what follows is added
-- ARGV  1 max_length of the queue to which what follows is added, 2 "1" where the number of leases is limited, 3 ms for which done tasks are kept (0: not
--       at all), 4 how many of them; then per task: id, lease token as the meta holds it, number of tasks that
--       follow, and those as enqueue.lua takes them
-- Returns a string with one letter per task: K done, S stale (another lease is current), M missing, F no room
--       for what was to follow, and nothing changed
-- Atomic because a task that is done without its successor, or twice with it, is what this is there to
-- prevent. A repeat after a lost reply finds the task missing and adds nothing. What was to follow and is in
-- the queue already counts as added.

local own, others = KEYS, {unpack(KEYS, 15, 28)}
local same = own[1] == others[1]
local max_length = tonumber(ARGV[1])
local keep_ms, max_done = tonumber(ARGV[3]), tonumber(ARGV[4])
local now_ms = math.floor(queue_now() / 1000)
if keep_ms > 0 then
  redis.call('ZCARD', KEYS[12]) -- a key of another type fails here, before the first write
end

-- The fragments work on KEYS, which is a local of this script: see scripts.go.
local function room()
  KEYS = others
  local n = queue_room(0, max_length)
  KEYS = own
  return same and n + 1 or n -- the task's own place is free then
end

-- A task that is followed by one of its own id is not kept: the id goes on.
local function kept(id, at, n)
  for k = 1, same and n or 0 do
    if ARGV[at + 5 * (k - 1)] == id then
      return false
    end
  end
  return keep_ms > 0
end

local status, at, i, freed = {}, 5, 0, 0
while at <= #ARGV do
  local id, token, n = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  i = i + 1
  local meta = redis.call('HGET', KEYS[5], id)
  if not meta then
    status[i] = 'M'
  elseif meta ~= token then
    status[i] = queue_ended(meta)
  elseif n > 0 and room() < n then
    status[i] = 'F'
  else
    status[i] = 'K'
    freed = freed + 1
    redis.call('ZREM', KEYS[3], id)
    local _, _, _, _, options = queue_parse(meta)
    queue_free(id, options)
    if kept(id, at + 3, n) then
      redis.call('ZADD', KEYS[12], string.format('%d', now_ms), id)
      redis.call('HSET', KEYS[5], id, string.match(meta, '^[^;]*') .. ';A')
    else
      redis.call('HDEL', KEYS[4], id)
      redis.call('HDEL', KEYS[5], id)
    end
    if n > 0 then
      KEYS = others
      queue_put(at + 3, n, max_length)
      KEYS = own
    end
  end
  at = at + 3 + 5 * n
end
if freed > 0 then
  queue_processed(now_ms, freed, keep_ms)
end
if keep_ms > 0 then
  queue_trim_done(now_ms, keep_ms, max_done, freed + 256)
end
if freed > 0 and ARGV[2] == '1' then
  queue_freed()
end
return table.concat(status)
