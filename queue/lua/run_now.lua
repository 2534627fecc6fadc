-- Makes delayed tasks and dead letters ready now. A dead letter's attempts are forgotten.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 max_length, 2 '' or, to leave delayed tasks and later dead letters as they are, the latest time of death in ms,
--       then ids
-- Returns a string with one letter per id: K done, M neither delayed nor dead, or left, F a dead letter, and the queue is full
-- Atomic because the task leaves one set and enters the other as one step.

local room, now_us = queue_room(0, tonumber(ARGV[1])), queue_now()
local by = tonumber(ARGV[2])
local status, ready = {}, false
for i = 3, #ARGV do
  local id = ARGV[i]
  local set
  if by then
    local died = redis.call('ZSCORE', KEYS[10], id)
    set = died and tonumber(died) <= by and 10
  else
    set = redis.call('ZSCORE', KEYS[2], id) and 2 or redis.call('ZSCORE', KEYS[10], id) and 10
  end
  if not set then
    status[i - 2] = 'M'
  else
    local _, priority, _, reason, options = queue_parse(redis.call('HGET', KEYS[5], id))
    local entries = queue_entries(options)
    if set == 10 and room < entries then
      status[i - 2] = 'F'
    else
      status[i - 2] = 'K'
      ready = true
      redis.call('ZREM', KEYS[set], id)
      if set == 10 then
        room = room - entries
        if entries > 1 then
          queue_tally('extra', entries - 1)
        end
        redis.call('HSET', KEYS[5], id, queue_meta(0, priority, 'R', reason, options))
      end
      -- In the order given, behind what arrived before.
      redis.call('ZADD', KEYS[1], string.format('%d', now_us - #ARGV + i - priority * queue_age_us), id)
    end
  end
end
if ready then
  queue_wake(0)
end
return table.concat(status)
