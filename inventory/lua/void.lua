-- Drops a sale that was loaded under another epoch, or is being built, which may be under another.
--
-- KEYS 1 sale (hash)
-- ARGV 1 epoch, 2 the mark of a stopped sale
--
-- Returns 1.
--
-- Atomic, because a load could open the sale under the epoch between the check and the deletion. A stopped sale
-- stays: nothing is sold from it, and it may be the last record of orders that the database has lost.

local sale = redis.call('HMGET', KEYS[1], 'epoch', 'changing')
if sale[1] ~= ARGV[1] and sale[2] ~= ARGV[2] then
  redis.call('DEL', KEYS[1])
end
return 1
