-- Acknowledges leased tasks and adds their follow-up tasks, as one step per task.
--
-- KEYS  those of fragment_common.lua; then the same keys of the queue for the follow-up tasks
-- ARGV  1 max_length of the queue for the follow-up tasks; then per task: id, lease token as the meta holds it,
--       number of follow-up tasks, and their fields as in enqueue.lua
-- Returns a string with one letter per task: K done, S stale (another lease is current), M missing, F no room
--       for the follow-up tasks, and nothing changed
-- Atomic because a task must never be done without its follow-up tasks, nor add them twice. A repeat after a
-- lost reply finds the task missing and adds nothing. A follow-up task that is already in the queue counts as
-- added.

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
