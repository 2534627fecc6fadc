-- Makes delayed tasks and dead letters ready now. A dead letter's attempts are forgotten.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 max_length, 2 the latest due time or time of death in ms ('': any), then ids
-- Returns a string with one letter per id: K done, M neither delayed nor dead, or only after ARGV[2], F a dead letter, and the queue is full
-- Atomic because the task leaves one set and enters the other as one step.

local room, now_us = queue_room(0, tonumber(ARGV[1])), queue_now()
local by = tonumber(ARGV[2]) or math.huge
local status, ready = {}, false
for i = 3, #ARGV do
  local id = ARGV[i]
  local set, at = 2, redis.call('ZSCORE', KEYS[2], id)
  if not at then
    set, at = 10, redis.call('ZSCORE', KEYS[10], id)
  end
  if not at or math.floor(tonumber(at)) > by then
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
