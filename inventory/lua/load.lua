-- Opens or rebuilds a sale from what the database says, page by page, under the item's lock.
--
-- KEYS 1 lock, 2 lock's waiters, 3 sale (hash), 4 idempotency (hash), 5 buyers (hash)
-- ARGV 1 lock value, 2 fencing token, 3 step:
--   'begin'   forgets the sale and what was bought in it
--   'orders'  then per order: buyer, idempotency key, quantity, order id, 1 if its units count (0: refused or given back)
--   'open'    then: epoch, left, limit, opens_ms, closes_ms, control, version
--
-- Returns 1, or 0 when the lock is not held by this value.
--
-- The sale's hash is written last: until then a purchase finds it missing and nothing is sold from
-- half a picture. Its version ends in the builder's fencing token, so that what a process remembers
-- of one build is void in the next, and in the count of its turns (see fragment_version.lua). An order
-- whose units do not count is remembered with ":r", as if they had been given back here. Each call is guarded: a builder that lost the lock changes nothing.

if lock_guard(KEYS[1], KEYS[2], ARGV[1]) < 0 then
  return 0
end
local step = ARGV[3]
if step == 'begin' then
  redis.call('DEL', KEYS[3], KEYS[4], KEYS[5])
elseif step == 'orders' then
  for a = 4, #ARGV, 5 do
    local buyer, key, quantity, id, counts = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
    -- The first writer of a field wins, so that a page sent twice counts once.
    local order = quantity .. ':' .. id .. (counts == '1' and '' or ':r')
    if redis.call('HSETNX', KEYS[4], buyer .. ' ' .. key, order) == 1 and counts == '1' then
      redis.call('HINCRBY', KEYS[5], buyer, quantity)
    end
  end
elseif step == 'open' then
  redis.call('HSET', KEYS[3], 'epoch', ARGV[4], 'fence', ARGV[2], 'left', ARGV[5], 'limit', ARGV[6],
    'opens_ms', ARGV[7], 'closes_ms', ARGV[8], 'control', ARGV[9], 'version', ARGV[10] .. '.' .. ARGV[2] .. '.0')
else
  return redis.error_reply('ERR unknown step')
end
return 1
