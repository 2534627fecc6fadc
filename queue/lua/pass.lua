-- Passes a wake-up on: leaves a token on the wake list where a dequeue would find tasks.
--
-- KEYS  1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead, 9 unique, 10 unique_until, 11 paused,
--       12 done, 13 counts, 14 rate
-- ARGV  1 how many leases there may be (0: any number), 2 microseconds per task of the rate (0: no rate), 3 how
--       many tasks an unused rate lets through at once
-- Returns 1 where it would, else 0; ms until it is worth looking: until the next delayed task or lease end falls
--       due, or the rate gives way; -1 where that is not known
-- Atomic so that no task arrives between the look, which finds nothing, and the answer.

if redis.call('EXISTS', KEYS[11]) == 1 then
  return {0, -1}
end
local now_us = queue_now()
local function left(due_ms)
  return due_ms and math.max(0, due_ms - math.floor(now_us / 1000))
end
local due, lease_end = left(queue_first(KEYS[2])), left(queue_first(KEYS[3]))
local ready = redis.call('ZCARD', KEYS[1]) > 0

-- What a limit holds back is nobody's yet. See dequeue.lua.
local max_leased, interval = tonumber(ARGV[1]), tonumber(ARGV[2])
if max_leased > 0 and redis.call('ZCARD', KEYS[3]) >= max_leased and lease_end ~= 0 then
  return {0, lease_end or -1} -- whoever ends a lease wakes a worker
end
if ready and interval > 0 and lease_end ~= 0 then
  local ahead = (tonumber(redis.call('GET', KEYS[14]) or '0') or 0) - now_us
  local over = math.min(ahead, math.ceil(tonumber(ARGV[3]) * interval)) - (tonumber(ARGV[3]) - 1) * interval
  if over > 0.01 then
    return {0, math.ceil(over / 1000)}
  end
end

if ready or due == 0 or lease_end == 0 then
  queue_wake(0)
  return {1, 0}
end
if due and lease_end then
  return {0, math.min(due, lease_end)}
end
return {0, due or lease_end or -1}
