-- Marks a sale as being changed, before the database changes the item, under the item's lock.
--
-- KEYS 1 lock, 2 lock's waiters, 3 sale (hash)
-- ARGV 1 lock value, 2 epoch, 3 units that the change will add (negative: take back)
--
-- Returns one letter: K marked, B fewer units are left than the change takes back, M the sale is missing,
-- not whole, of another epoch, or marked by another change, L the lock is not held by this value.
--
-- Atomic, so that the units are left when the mark is set, and nothing is sold after it: the purchase script treats
-- a marked sale as missing. No purchase is sent while the change is under way, since the change holds the lock. If
-- the process dies, the next seller rebuilds the sale from the database, which has the change or not. A repeat
-- changes nothing.

if lock_guard(KEYS[1], KEYS[2], ARGV[1]) < 0 then
  return 'L'
end
local sale = redis.call('HMGET', KEYS[3], 'epoch', 'left', 'changing', 'per_user_limit')
if not sale[2] or not sale[4] or sale[1] ~= ARGV[2] or (sale[3] and sale[3] ~= ARGV[1]) then
  return 'M'
end
local left = tonumber(sale[2])
if not left then
  return redis.error_reply('ERR the sale is damaged')
end
local add = tonumber(ARGV[3])
if add < 0 and left + add < 0 then
  return 'B'
end
redis.call('HSET', KEYS[3], 'changing', ARGV[1])
return 'K'
