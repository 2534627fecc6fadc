-- Fragment for other scripts that hold the lock only while they run: no other command
-- runs in between, so the lock's key need not be written.
--
-- lock_instant(lock_key, waiters_key, fence_key) returns the fencing token of this
-- holding as a string; nil if the lock is held or waited for: the caller may try again
-- later, or acquire it as usual; false if it must be acquired as usual, because the clock
-- was set back. It only reads, so it comes before the first write.
-- lock_instant_end(fence_key, fence) records the token. A script that has changed data
-- must call it: the next holder's token is then higher.
-- All three keys must be in KEYS.
local function lock_instant(lock_key, waiters_key, fence_key)
  if redis.call('EXISTS', lock_key) == 1 then return nil end
  local clock = redis.call('TIME')
  local fence = clock[1] .. string.sub('000000', #clock[2] + 1) .. clock[2]
  local last = redis.pcall('GET', fence_key)
  -- Without a last token it is not known whether there are waiters. A longer value has the
  -- mark of waiters; a higher one means that the clock was set back (see acquire.lua).
  if not last then
    return redis.call('EXISTS', waiters_key) == 0 and fence or nil
  end
  if type(last) ~= 'string' or #last ~= #fence then return nil end
  return last < fence and fence
end

local function lock_instant_end(fence_key, fence)
  redis.call('SET', fence_key, fence, 'PX', 86400000) -- kept for a day (see handover.lua)
end
