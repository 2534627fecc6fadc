-- Fragment of ack.lua, complete.lua and dequeue.lua: tasks that are done and kept for a while. It follows
-- fragment_common.lua.

-- queue_trim_done(now_ms, keep_ms, max_done, bound): drops kept tasks that are too old or too many, the oldest
-- first and up to bound of them, with their bodies. It only removes.
local function queue_trim_done(now_ms, keep_ms, max_done, bound)
  local old = redis.call('ZCOUNT', KEYS[12], '-inf', string.format('%d', now_ms - keep_ms))
  local excess = math.min(bound, math.max(old, redis.call('ZCARD', KEYS[12]) - max_done))
  while excess > 0 do
    -- Their unique keys were given up when they were done.
    local ids = redis.call('ZRANGE', KEYS[12], 0, math.min(excess, queue_chunk) - 1)
    redis.call('ZREM', KEYS[12], unpack(ids))
    redis.call('HDEL', KEYS[4], unpack(ids))
    redis.call('HDEL', KEYS[5], unpack(ids))
    excess = excess - #ids
  end
end
