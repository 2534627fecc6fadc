-- Passes a wake-up on: leaves a token on the wake list where a dequeue would find tasks.
--
-- KEYS  1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead, 9 unique, 10 unique_until, 11 paused
-- Returns 1 where it would, else 0; ms until the next delayed task or lease end falls due, -1 where there is none
-- Atomic so that no task arrives between the look, which finds nothing, and the answer.

if redis.call('EXISTS', KEYS[11]) == 1 then
  return {0, -1}
end
local next_ms = queue_first(KEYS[2])
local lease_ms = queue_first(KEYS[3])
if lease_ms and (not next_ms or lease_ms < next_ms) then
  next_ms = lease_ms
end
if next_ms then
  next_ms = math.max(0, next_ms - math.floor(queue_now() / 1000))
end
if next_ms == 0 or redis.call('ZCARD', KEYS[1]) > 0 then
  queue_wake(0)
  return {1, 0}
end
return {0, next_ms or -1}
