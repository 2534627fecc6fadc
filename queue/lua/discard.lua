-- Removes a dead task for good, with its body.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 id
-- Returns K done, M no such dead task
-- Atomic because only a task that is dead may lose its body.

if redis.call('ZREM', KEYS[8], ARGV[1]) == 0 then
  return 'M'
end
queue_forget(ARGV)
return 'K'
