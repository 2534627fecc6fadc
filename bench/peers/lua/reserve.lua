-- Takes units of an item, or finds the order that the buyer has placed with the same key.
--
-- KEYS: 1 stock, 2 units by buyer (hash), 3 order ids by buyer and key (hash)
-- ARGV: 1 buyer, 2 field of the order in KEYS[3], 3 quantity, 4 limit per buyer, 5 id of a
--       new order
-- Returns the order's id, "sold_out" or "user_limit".
--
-- Atomic, because the checks must still be true when the stock is decremented.
local earlier = redis.call('HGET', KEYS[3], ARGV[2])
if earlier then
  return earlier
end
local quantity = tonumber(ARGV[3])
local held = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '0')
if held + quantity > tonumber(ARGV[4]) then
  return 'user_limit'
end
local left = tonumber(redis.call('GET', KEYS[1]) or '0')
if left < quantity then
  return 'sold_out'
end
redis.call('DECRBY', KEYS[1], quantity)
redis.call('HINCRBY', KEYS[2], ARGV[1], quantity)
redis.call('HSET', KEYS[3], ARGV[2], ARGV[5])
return ARGV[5]
