-- Fragment for other scripts: lock_guard(lock_key, waiters_key, value) returns
-- the number of waiters (0 or more, including those that died recently), or -1
-- if the lock is not held with this value. Both keys must be in KEYS; the
-- value is "<token>:<fence>". It only reads, so it comes before the first write.
local function lock_guard(lock_key, waiters_key, value)
  if redis.pcall('GET', lock_key) ~= value then return -1 end
  local waiting = redis.pcall('ZCARD', waiters_key)
  if type(waiting) ~= 'number' then return 0 end
  return waiting
end
