-- Makes a sale that is not stopped incomplete, so that its next purchase loads it.
--
-- KEYS 1 sale (hash)
-- ARGV 1 the mark of a stopped sale
--
-- Returns 1.
--
-- Atomic, so that a sale that is stopped in the meantime keeps its values. Unlike drop.lua it keeps the field
-- 'building', so a load under way goes on.

if redis.call('HGET', KEYS[1], 'changing') ~= ARGV[1] then
  redis.call('HDEL', KEYS[1], 'left')
end
return 1
