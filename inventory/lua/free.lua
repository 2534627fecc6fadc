-- Removes what Redis holds of a sale that has ended.
--
-- KEYS 1 sale (hash), 2 idempotency (hash), 3 buyers (hash), 4 the item's lock, 5 accepted keys (string)
-- ARGV 1 the mark of a stopped sale
--
-- Returns 1 removed, 0 nothing was there, or -1 kept: the sale has not ended by its own terms, it is stopped, or
-- it is not whole and the item's lock is held, so that its holder may be loading or changing the sale.
--
-- Atomic, because the end of the sale may be moved at any time: a sale that is open again must keep all of its
-- keys, and one that has lost one of them must not sell. The keys are unlinked: deleting or expiring a hash of a
-- million fields would block the server for a fraction of a second.

local sale = redis.call('HMGET', KEYS[1], 'left', 'building', 'changing', 'control', 'closes_ms')
if sale[3] == ARGV[1] then
  return -1
end
if sale[2] or sale[3] or not sale[1] then
  -- Nothing is sold of it. The mark of a process that has died is removed with it.
  if redis.call('EXISTS', KEYS[4]) == 1 then
    return -1
  end
elseif sale[4] ~= 'closed' then
  local closes_ms = tonumber(sale[5] or '0') or 0
  local time = redis.call('TIME')
  if closes_ms <= 0 or tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) < closes_ms then
    return -1
  end
end
if redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[5]) > 0 then
  return 1
end
return 0
