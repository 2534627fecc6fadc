-- Returns the units of orders of one item that were cancelled, expired or refused to its stock.
--
-- KEYS 1 sale (hash), 2 idempotency (hash), 3 buyers (hash; see fragment_buyer.lua), 4 the partition's epoch (string)
-- ARGV 1 epoch, 2 channel for stock changes, 3 item, 4 number of orders n (100 at the most),
--      then per order: buyer, idempotency key, order id, quantity
--
-- Returns the sale's sequence (0 where it is not loaded), a space, and one letter per order, in order:
--   K released, D released before, or loaded as released,
--   N the sale is not loaded and no build of it is under way; nothing is left to do, because each later build
--     reads the database, where the order is closed,
--   M not found: the sale is being built, being changed, stopped, of another epoch or of an older version's layout, or
--     a buyer's value cannot be read, or the order's key is missing, or the partition's data belongs to another
--     epoch; nothing was done, and a build of the sale from the database either excludes the order or makes it known,
--   X the key belongs to another order, or to another quantity; nothing was done
--
-- Atomic, because the order's mark under its idempotency key (":r") keeps its units from being returned twice:
-- reading it, setting it and raising the stock must be one step. All checks come before the first write. It
-- needs no lock: it only adds units, and a build of the sale, which holds the lock, keeps the sale incomplete
-- until its end.
--
-- A return to an empty sale raises its version, since further orders may now be accepted, and publishes a
-- message, so that every process drops its sold-out mark.

local n = tonumber(ARGV[4])
local sale = redis.call('HMGET', KEYS[1], 'epoch', 'left', 'version', 'sequence', 'building', 'changing', 'per_user_limit')
if not sale[2] and not sale[5] and not sale[6] and redis.call('GET', KEYS[4]) == ARGV[1] then
  -- A build that was interrupted by a drop cannot open the sale either: its field is gone.
  return '0 ' .. string.rep('N', n)
end
if not sale[2] or not sale[3] or not sale[7] or sale[1] ~= ARGV[1] then
  return '0 ' .. string.rep('M', n)
end
local was, version = tonumber(sale[2]), sale_version(sale[3])
local sequence = tonumber(sale[4] or '0') or 0
if not was or not version then
  return redis.error_reply('ERR the sale is damaged')
end

local fields, buyers = {}, {}
for i = 1, n do
  local a = 4 + (i - 1) * 4
  buyers[i] = ARGV[a + 1]
  fields[i] = ARGV[a + 1] .. ' ' .. ARGV[a + 2]
end
local orders = redis.call('HMGET', KEYS[2], unpack(fields))
local values = redis.call('HMGET', KEYS[3], unpack(buyers))
local known, held, kept = {}, {}, {}  -- by field; by buyer: units, and the field and key of the order in the value
for i = 1, n do
  known[fields[i]] = known[fields[i]] or orders[i]
  local buyer = buyers[i]
  if values[i] and not held[buyer] then
    local units, order, key = sale_buyer(values[i])
    if not units then
      return '0 ' .. string.rep('M', n)
    end
    held[buyer], kept[buyer] = units, {buyer .. ' ' .. key, key}
    known[buyer .. ' ' .. key] = order
  end
end

local verdicts, left = {}, was
local done, marks, touched = false, {}, {}
for i = 1, n do
  local a = 4 + (i - 1) * 4
  local buyer, field, quantity = buyers[i], fields[i], ARGV[a + 4]
  local order = quantity .. ':' .. ARGV[a + 3]
  if not known[field] then
    verdicts[i] = 'M'
  elseif known[field] == order .. ':r' then
    verdicts[i] = 'D'
  elseif known[field] ~= order then
    verdicts[i] = 'X'
  else
    verdicts[i] = 'K'
    known[field] = order .. ':r'
    left = left + tonumber(quantity)
    done = true
    if held[buyer] then
      held[buyer] = math.max(held[buyer] - tonumber(quantity), 0)
      touched[buyer] = true
    end
    if not kept[buyer] or kept[buyer][1] ~= field then
      marks[#marks + 1] = field
      marks[#marks + 1] = known[field]
    end
  end
end
if not done then
  return string.format('%d ', sequence) .. table.concat(verdicts)
end

for buyer in pairs(touched) do
  redis.call('HSET', KEYS[3], buyer, string.format('%d ', held[buyer]) .. known[kept[buyer][1]] .. ' ' .. kept[buyer][2])
end
if #marks > 0 then
  redis.call('HSET', KEYS[2], unpack(marks))
end
sequence = sequence + 1
redis.call('HSET', KEYS[1], 'left', string.format('%d', left), 'sequence', string.format('%d', sequence))
if was <= 0 and left > 0 then
  redis.call('HSET', KEYS[1], 'version', version)
  redis.call('PUBLISH', ARGV[2], ARGV[3])
end
return string.format('%d ', sequence) .. table.concat(verdicts)
