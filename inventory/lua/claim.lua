-- Claims a sale that is missing for a rebuild, which loads it later.
--
-- KEYS 1 sale (hash)
-- ARGV 1 claim: 'rebuild:' and what no other claim has
--
-- Returns 1, or 0 when the sale is there, stopped, or being built.
--
-- A claimed sale is missing to every other script, so nothing is sold of it and no order of it is queued.
-- Whoever loads or drops the sale takes the claim away. So while a claim is there, the queue has no order of
-- the item that it did not have when the claim was made, and one look at the queue serves all claimed items.
-- The rebuild loads a sale only if its own claim is still there. It needs no lock: it takes nothing away but
-- the claim of another rebuild, which then leaves the sale alone.

local sale = redis.call('HGETALL', KEYS[1])
if #sale > 0 and not (#sale == 2 and sale[1] == 'building' and string.sub(sale[2], 1, 8) == 'rebuild:') then
  return 0
end
redis.call('HSET', KEYS[1], 'building', ARGV[1])
return 1
