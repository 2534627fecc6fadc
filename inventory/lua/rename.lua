-- Renames a buyer of one item, and the idempotency keys of the buyer's orders.
--
-- KEYS 1 lock, 2 lock's waiters, 3 sale (hash), 4 idempotency (hash), 5 buyers (hash; see fragment_buyer.lua)
-- ARGV 1 lock value, 2 epoch, 3 step, 4 channel for stock changes, 5 item, 6 the buyer, 7 the new name,
--      8 '1' if the list of orders ends with this call, then per order: its key, the new key
--   'begin'  renames, and marks the sale as being changed if it is loaded: nothing is sold until the mark is gone
--   'end'    renames the rest, and removes the mark
--   'drop'   is for a caller that has lost the lock after the database was changed: another process may have
--            loaded the old names before that. It renames them and drops the sale, so that a load under way begins again
--
-- Returns one letter: K done, S the sale is stopped and nothing was done (only 'begin'), L the lock is not held
-- by this value ('drop' does not check it).
--
-- Atomic, because a buyer's keys and units must never be stored under two names or none. A repeat changes
-- nothing. The sale need not be loaded: the orders and counts of a dropped sale are renamed, and nothing is added.
-- The keys of the accepted orders change, so the version does too, and every process drops its sold-out mark.

local guard, step = ARGV[1], ARGV[3]
if step ~= 'drop' and lock_guard(KEYS[1], KEYS[2], guard) < 0 then
  return 'L'
end
local sale = redis.call('HMGET', KEYS[3], 'epoch', 'left', 'version', 'changing')
local mark = sale[4] or ''
if step == 'begin' and mark == 'stopped' then
  return 'S'
end
local version
if sale[3] then
  version = sale_version(sale[3])
end
local loaded = sale[1] == ARGV[2] and sale[2] and version and (mark == '' or mark == guard)
local from, to = ARGV[6], ARGV[7]
local values = redis.call('HMGET', KEYS[5], from, to)
local units, order, key = sale_buyer(values[1] or '')
local to_units, to_order, to_key = sale_buyer(values[2] or '')
if (values[1] and not units) or (values[2] and not to_units) then
  if mark == 'stopped' then
    return redis.error_reply('ERR the value of a buyer is damaged')
  end
  redis.call('UNLINK', KEYS[3], KEYS[4], KEYS[5])  -- damaged, or of an older version; the next load reads the database
  redis.call('PUBLISH', ARGV[4], ARGV[5])
  return 'K'
end

local renamed  -- the new key of the order in the buyer's value
local first, chunk = 9, 200  -- the embedded engine's Lua stack is small
for page = first, #ARGV, chunk do
  local old, new, values, gone = {}, {}, {}, {}
  for a = page, math.min(page + chunk - 2, #ARGV - 1), 2 do
    old[#old + 1] = from .. ' ' .. ARGV[a]
    new[#new + 1] = to .. ' ' .. ARGV[a + 1]
    if ARGV[a] == key and not renamed then
      renamed = ARGV[a + 1]
    end
  end
  local known = redis.call('HMGET', KEYS[4], unpack(old))
  for i = 1, #old do
    if known[i] then
      values[#values + 1] = new[i]
      values[#values + 1] = known[i]
      gone[#gone + 1] = old[i]
    end
  end
  if #gone > 0 then
    redis.call('HSET', KEYS[4], unpack(values))
    redis.call('HDEL', KEYS[4], unpack(gone))
  end
end
-- The buyer's value is renamed by the call that has its key, so that each key is renamed, or else by the last one.
if units and (renamed or ARGV[8] == '1') then
  if to_units then
    redis.call('HSET', KEYS[5], to, string.format('%d ', units + to_units) .. to_order .. ' ' .. to_key)
    redis.call('HSET', KEYS[4], to .. ' ' .. (renamed or key), order)
  else
    redis.call('HSET', KEYS[5], to, string.format('%d ', units) .. order .. ' ' .. (renamed or key))
  end
  redis.call('HDEL', KEYS[5], from)
end

if step == 'drop' then
  if mark ~= 'stopped' then
    redis.call('DEL', KEYS[3])
  end
elseif loaded then
  redis.call('HSET', KEYS[3], 'version', version)
  if step == 'begin' then
    redis.call('HSET', KEYS[3], 'changing', guard)
  else
    redis.call('HDEL', KEYS[3], 'changing')
  end
end
redis.call('PUBLISH', ARGV[4], ARGV[5])
return 'K'
