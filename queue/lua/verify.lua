-- Checks that each of some ids is in exactly one state and has what it needs, and repairs it if asked.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 "1" to repair, 2 max_dead, then ids
-- Returns a string with one letter per id: k well or gone, o a body or meta in no state, s in several states,
--       b waiting or leased without a body
-- Atomic because a task that changes its state during the check would seem to be lost or doubled.
--
-- Repair loses nothing: a task in no state becomes ready, one in several states keeps the state closest to running,
-- and one without a body becomes a dead letter with that reason.

local repair = ARGV[1] == '1'
local now_us = queue_now()
local now_ms = math.floor(now_us / 1000)
local status, buried, readied = {}, 0, 0

for i = 3, #ARGV do
  local id = ARGV[i]
  local states, letter = {}, 'k'
  for _, s in ipairs({3, 1, 2, 10}) do -- leased, ready, delayed, dead
    if redis.call('ZSCORE', KEYS[s], id) then
      states[#states + 1] = s
    end
  end
  local body = redis.call('HEXISTS', KEYS[4], id) == 1
  local meta = redis.call('HGET', KEYS[5], id)
  local attempt, priority, tag, _, options = queue_parse(meta)
  if #states > 1 then
    letter = 's'
    if repair then
      for s = 2, #states do
        redis.call('ZREM', KEYS[states[s]], id)
      end
    end
  elseif #states == 0 and (body or meta) then
    letter = 'o'
    if repair and body then
      redis.call('ZADD', KEYS[1], string.format('%d', now_us - priority * queue_age_us), id)
      local _, plain = queue_back(options)
      redis.call('HSET', KEYS[5], id, queue_meta(attempt, priority, 'R', 'was in no state', plain))
      readied = readied + 1
      if tag == 'D' and queue_entries(options) > 1 then -- it counted as one entry
        queue_tally('extra', queue_entries(options) - 1)
      end
    elseif repair then
      queue_forget({id}, {meta})
    end
  end
  if #states > 0 and states[1] ~= 10 and not body then
    letter = 'b'
    if repair then
      redis.call('ZREM', KEYS[states[1]], id)
      queue_bury(id, now_ms, attempt, priority, 'body missing', options)
      buried = buried + 1
    end
  end
  status[i - 2] = letter
end
if buried > 0 then
  queue_buried(buried, tonumber(ARGV[2]))
end
if readied > 0 then
  queue_wake(0)
end
return table.concat(status)
