-- Drops a stopped sale, so that its next purchase loads it.
--
-- KEYS 1 sale (hash)
-- ARGV 1 the mark of a stopped sale
--
-- Returns 1.
--
-- Atomic, so that a sale that was loaded in the meantime is not dropped.

if redis.call('HGET', KEYS[1], 'changing') == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 1
