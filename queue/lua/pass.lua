-- Passes a wake-up on: leaves a token on the wake list where a dequeue would find tasks.
--
-- KEYS  those of fragment_common.lua
-- Returns 1 if it would, else 0; ms until the next delayed task falls due or the next lease ends, -1 if unknown
-- Atomic so that no task arrives between the check, which finds nothing, and the reply.

if redis.call('EXISTS', KEYS[9]) == 1 then
  return {0, -1}
end
local next_ms = queue_next(math.floor(queue_now() / 1000))
if next_ms == 0 or redis.call('ZCARD', KEYS[1]) > 0 then
  queue_wake(0)
  return {1, 0}
end
return {0, next_ms or -1}
