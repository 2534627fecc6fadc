-- Passes a wake-up on: leaves a token on the wake list where a dequeue would find tasks.
--
-- KEYS  those of fragment_common.lua
-- Returns 1 if it would, else 0; ms until the next delayed task falls due or the next lease ends, -1 if unknown
-- Atomic so that no task arrives between the check, which finds nothing, and the reply.

if redis.call('EXISTS', KEYS[9]) == 1 then
  return {0, -1}
end
local now_ms = math.floor(queue_now() / 1000)
local function left(due_ms)
  return due_ms and math.max(0, due_ms - now_ms)
end
local due, lease_end = left(queue_first(KEYS[2])), left(queue_first(KEYS[3]))
if due == 0 or lease_end == 0 or redis.call('ZCARD', KEYS[1]) > 0 then
  queue_wake(0)
  return {1, 0}
end
if due and lease_end then
  return {0, math.min(due, lease_end)}
end
return {0, due or lease_end or -1}
