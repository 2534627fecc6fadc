-- Marks a sale as stopped, also one that is not loaded, and notifies every process.
--
-- KEYS 1 sale (hash)
-- ARGV 1 the mark of a stopped sale, 2 channel for stock changes, 3 item
--
-- Returns 1, or 0 when the sale was stopped before.
--
-- Atomic, so that the message follows the mark. The sale keeps its values: they may be the last record of orders
-- that the database has lost. The field 'interrupted' says that a change was under way, so that the sale may lack
-- what the database has committed.

local was = redis.call('HGET', KEYS[1], 'changing')
if was == ARGV[1] then
  return 0
end
if was then
  redis.call('HSET', KEYS[1], 'interrupted', 1)
end
redis.call('HSET', KEYS[1], 'changing', ARGV[1])
redis.call('PUBLISH', ARGV[2], ARGV[3])
return 1
