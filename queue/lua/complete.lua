-- Acknowledges leased tasks, and adds their follow-up tasks and those split off them, as one step per task.
--
-- KEYS  those of fragment_common.lua; then the same keys of the queue for the follow-up tasks
-- ARGV  1 max_length of the queue for the follow-up tasks; then per task: id, lease token as the meta holds it,
--       number of tasks split off, number of follow-up tasks, and the fields of both as in enqueue.lua
-- Returns a string with one letter per task: K done, S stale (another lease is current), M missing, F no room
--       for the follow-up tasks, and nothing changed
-- Atomic because a task must never be done without its follow-up tasks, nor add them twice. A repeat after a
-- lost reply finds the task missing and adds nothing. A follow-up task that is already in the queue counts as
-- added.

local own, others = KEYS, {unpack(KEYS, 11, 20)}
local same = own[1] == others[1]
local max_length = tonumber(ARGV[1])

-- The entries of the n tasks whose fields begin at ARGV[at].
local function entries_of(at, n)
  local sum = 0
  for i = 1, n do
    sum = sum + queue_entries(ARGV[at + 5 * i - 1])
  end
  return sum
end

-- The fragments work on KEYS, which is a local of this script: see scripts.go.
local function room_for_next()
  KEYS = others
  local room = queue_room(0, max_length)
  KEYS = own
  return room
end

local room -- for follow-up tasks, as long as no write has changed it

local function fits(needed, meta)
  room = room or room_for_next()
  local freed = 0
  if same then -- the task's own place is free then
    local _, _, _, _, options = queue_parse(meta)
    freed = queue_entries(options)
  end
  return room + freed >= needed
end

-- What is split off a task takes the place that the task had, so there is room for it.
local unbounded = 1e15

-- A key of another type must fail here, before the first write, and not after it.
local at, splits, follows = 2, 0, 0
while at <= #ARGV do
  local split, n = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  splits, follows = splits + split, follows + n
  at = at + 4 + 5 * (split + n)
end
if splits > 0 then
  queue_room(0, unbounded)
end
if follows > 0 then
  room = room_for_next()
end

local status, i, freed = {}, 0, 0
at = 2
while at <= #ARGV do
  local id, token, split, n = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local first, next_first = at + 4, at + 4 + 5 * split
  i = i + 1
  local meta = redis.call('HGET', KEYS[5], id)
  if not meta then
    status[i] = 'M'
  elseif meta ~= token then
    status[i] = 'S'
  elseif n > 0 and not fits(entries_of(next_first, n), meta) then
    status[i] = 'F'
  else
    status[i] = 'K'
    if same or n > 0 then
      room = nil
    end
    redis.call('ZREM', KEYS[3], id)
    freed = freed + math.max(0, queue_forget({id}, {meta}) - entries_of(first, split))
    if split > 0 then
      queue_put(first, split, unbounded)
      queue_tally('split', split)
    end
    if n > 0 then
      KEYS = others
      queue_put(next_first, n, max_length)
      KEYS = own
    end
  end
  at = next_first + 5 * n
end
if freed > 0 then
  queue_processed(freed)
end
return table.concat(status)
