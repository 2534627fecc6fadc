-- Acknowledges leased tasks and adds those that are to follow each, as one step per task.
--
-- KEYS  those of fragment_common.lua; then the same of the queue to which what follows is added
-- ARGV  1 max_length of the queue to which what follows is added; then per task: id, lease token as the meta holds
--       it, number of tasks that follow, and those as enqueue.lua takes them
-- Returns a string with one letter per task: K done, S stale (another lease is current), M missing, F no room
--       for what was to follow, and nothing changed
-- Atomic because a task that is done without its successor, or twice with it, is what this is there to
-- prevent. A repeat after a lost reply finds the task missing and adds nothing. What was to follow and is in
-- the queue already counts as added.

local own, others = KEYS, {unpack(KEYS, 11, 20)}
local same = own[1] == others[1]
local max_length = tonumber(ARGV[1])

-- The fragments work on KEYS, which is a local of this script: see scripts.go.
local function room()
  KEYS = others
  local n = queue_room(0, max_length)
  KEYS = own
  return same and n + 1 or n -- the task's own place is free then
end

local status, at, i, freed = {}, 2, 0, 0
while at <= #ARGV do
  local id, token, n = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  i = i + 1
  local meta = redis.call('HGET', KEYS[5], id)
  if not meta then
    status[i] = 'M'
  elseif meta ~= token then
    status[i] = 'S'
  elseif n > 0 and room() < n then
    status[i] = 'F'
  else
    status[i] = 'K'
    freed = freed + 1
    redis.call('ZREM', KEYS[3], id)
    queue_forget({id})
    if n > 0 then
      KEYS = others
      queue_put(at + 3, n, max_length)
      KEYS = own
    end
  end
  at = at + 3 + 5 * n
end
if freed > 0 then
  queue_processed(freed)
end
return table.concat(status)
