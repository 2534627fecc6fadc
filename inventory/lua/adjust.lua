-- Applies a change of an item that the database has committed to the item's sale, while it runs.
--
-- KEYS 1 sale (hash)
-- ARGV 1 epoch, 2 channel for stock changes, 3 item, 4 the mark of suspend.lua that this change removes, or '',
--      5 the item's version after the change (0: nothing was changed, and only the mark is removed),
--      6 units to add (negative: take back), 7 '1': the price and the currency stay as they are, then the new limit,
--      opens_ms, closes_ms and control, '' where they stay as they are
--
-- Returns one letter: K done; D done before, or loaded with the change (its own mark is removed); and, with
-- nothing changed, B fewer units are left than are taken back, M the sale is missing, not whole, of another
-- epoch, or marked by another change, G a change before this one has not arrived.
--
-- Atomic, because the version shows whether the sale has the change, so the version and the values must change
-- together. It needs no lock: purchases read the values in their own script, and the version admits each change
-- once and in order. Every process is notified and drops its sold-out mark.
--
-- The sale's field same_price is "<from>-<to>": these versions of the item, and those between them, have the same
-- price and currency. It is valid while the sale has the version <to>: processes of an earlier release do not write it.

local sale = redis.call('HMGET', KEYS[1], 'epoch', 'left', 'version', 'changing', 'per_user_limit', 'same_price')
local mark = sale[4] or ''
if not sale[2] or not sale[3] or not sale[5] or sale[1] ~= ARGV[1] or (mark ~= '' and mark ~= ARGV[4]) then
  return 'M'
end
local at, add = tonumber(ARGV[5]), tonumber(ARGV[6])
local left = tonumber(sale[2])
local version, was = sale_version(sale[3], at > 0 and ARGV[5] or nil)
if not left or not version then
  return redis.error_reply('ERR the sale is damaged')
end
if at == 0 then
  if mark == '' then
    return 'D'
  end
  redis.call('HDEL', KEYS[1], 'changing')
  return 'K'
end
if was >= at then
  if mark ~= '' then
    redis.call('HDEL', KEYS[1], 'changing')
  end
  return 'D'
elseif was < at - 1 then
  return 'G'
elseif add < 0 and left + add < 0 then
  return 'B'
end

local values = {'left', string.format('%d', left + add), 'version', version}
for i, field in ipairs({'per_user_limit', 'opens_ms', 'closes_ms', 'control'}) do
  if ARGV[7 + i] ~= '' then
    values[#values + 1] = field
    values[#values + 1] = ARGV[7 + i]
  end
end
if ARGV[7] == '1' then
  local from, to = string.match(sale[6] or '', '^(%d+)%-(%d+)$')
  if not from or tonumber(to) ~= was then
    from = string.format('%d', was)
  end
  values[#values + 1] = 'same_price'
  values[#values + 1] = from .. '-' .. ARGV[5]
end
redis.call('HSET', KEYS[1], unpack(values))
if mark ~= '' then
  redis.call('HDEL', KEYS[1], 'changing')
end
redis.call('PUBLISH', ARGV[2], ARGV[3])
return 'K'
