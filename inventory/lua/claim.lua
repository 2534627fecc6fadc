-- Claims a missing sale for a rebuild, which loads it later.
--
-- KEYS 1 sale (hash)
-- ARGV 1 claim: 'rebuild:' and a unique text
--
-- Returns 1, or 0 when the sale is there, stopped, or being built.
--
-- Every other script treats a claimed sale as missing, so nothing is sold of it and no order of it is queued. A
-- load or a drop of the sale removes the claim. So as long as a claim exists, no order of the item is added to
-- the queue, and one read of the queue serves all claimed items. The rebuild loads a sale only if its own claim
-- is still there. It needs no lock: it can only replace the claim of another rebuild, which then skips the sale.

local sale = redis.call('HGETALL', KEYS[1])
if #sale > 0 and not (#sale == 2 and sale[1] == 'building' and string.sub(sale[2], 1, 8) == 'rebuild:') then
  return 0
end
redis.call('HSET', KEYS[1], 'building', ARGV[1])
return 1
