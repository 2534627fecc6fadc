-- Loads a sale from the database's data, page by page, under the item's lock.
--
-- KEYS 1 lock, 2 lock's waiters, 3 sale (hash), 4 idempotency (hash), 5 buyers (hash; see fragment_buyer.lua), 6 accepted keys (string)
-- ARGV 1 lock value, 2 fencing token, 3 step, and for all steps but 'forget' 4 the build: a number that no other build has
--   'forget'  deletes the sale and its orders
--   'begin'   deletes them, and begins the build
--   'claimed' is 'begin' if the sale still has the claim that follows (see claim.lua)
--   'orders'  then the hashes of the orders' keys, 4 bytes each, and per order: buyer, idempotency key,
--             quantity, order id, 1 if its units count (0: refused or released)
--   'open'    then: epoch, left, limit, opens_ms, closes_ms, control, version, the highest known sequence, the channel for
--             stock changes, item; every process is notified, since units may have returned
--
-- Returns 1, 0 when the lock is not held by this value, or 2 when the sale was dropped since its claim or
-- its 'begin'.
--
-- The sale's hash is written last: until then purchases find the sale missing, and nothing is sold from a partial
-- load. Its version includes the build, so that sold-out marks of one build are invalid in the next, and the count of
-- its turns (see fragment_version.lua). The fencing token cannot replace the build: one holder of the lock may build the
-- sale twice, and a late command of the first build may arrive during the second. An order whose units do not count is
-- stored with ":r", as if release.lua had returned them. Each call is guarded: a process that lost the lock changes nothing.
--
-- A sale may be dropped without the lock when the database has changed. A build under way may have read the database
-- before that, so it keeps the field 'building', whose absence shows that the sale was dropped. The other scripts treat a
-- sale with only that field as missing.

if lock_guard(KEYS[1], KEYS[2], ARGV[1]) < 0 then
  return 0
end
local step = ARGV[3]
if step == 'claimed' then
  if redis.call('HGET', KEYS[3], 'building') ~= ARGV[5] then
    return 2
  end
  step = 'begin'
end
if step == 'forget' or step == 'begin' then
  -- Unlinked, so that Redis frees a large sale's hashes in the background.
  redis.call('UNLINK', KEYS[3], KEYS[4], KEYS[5], KEYS[6])
  if step == 'begin' then
    redis.call('HSET', KEYS[3], 'building', ARGV[4])
  end
elseif step == 'orders' then
  if redis.call('HGET', KEYS[3], 'building') ~= ARGV[4] then
    return 2
  end
  -- In chunks, with four calls for each: a large sale is loaded while buyers wait. The embedded engine's small Lua
  -- stack limits the chunks.
  local chunk = 100 * 5
  redis.call('APPEND', KEYS[6], ARGV[5])
  for from = 6, #ARGV, chunk do
    local to = math.min(from + chunk - 1, #ARGV)
    local fields, buyers = {}, {}
    for a = from, to, 5 do
      buyers[#buyers + 1] = ARGV[a]
      fields[#fields + 1] = ARGV[a] .. ' ' .. ARGV[a + 1]
    end
    local known = redis.call('HMGET', KEYS[4], unpack(fields))
    local stored = redis.call('HMGET', KEYS[5], unpack(buyers))
    local further, held, kept, seen = {}, {}, {}, {}  -- held and kept as in purchase.lua, by buyer
    for i, buyer in ipairs(buyers) do
      if stored[i] and not held[buyer] then
        local units, order, key = sale_buyer(stored[i])
        if not units then
          return redis.error_reply('ERR the value of a buyer is damaged')
        end
        held[buyer], kept[buyer] = units, order .. ' ' .. key
        seen[buyer .. ' ' .. key] = true
      end
    end
    local changed = {}
    for i, field in ipairs(fields) do
      local a = from + (i - 1) * 5
      local buyer = buyers[i]
      -- Only the first write of a field counts, so that a page sent twice counts once.
      if not known[i] and not seen[field] then
        seen[field], changed[buyer] = true, true
        local order = ARGV[a + 2] .. ':' .. ARGV[a + 3]
        held[buyer] = held[buyer] or 0
        if ARGV[a + 4] == '1' then
          held[buyer] = held[buyer] + tonumber(ARGV[a + 2])
        else
          order = order .. ':r'
        end
        if not kept[buyer] then
          kept[buyer] = order .. ' ' .. ARGV[a + 1]
        else
          further[#further + 1] = field
          further[#further + 1] = order
        end
      end
    end
    if #further > 0 then
      redis.call('HSET', KEYS[4], unpack(further))
    end
    local values = {}
    for buyer in pairs(changed) do
      values[#values + 1] = buyer
      values[#values + 1] = string.format('%d', held[buyer]) .. ' ' .. kept[buyer]
    end
    if #values > 0 then
      redis.call('HSET', KEYS[5], unpack(values))
    end
  end
elseif step == 'open' then
  if redis.call('HGET', KEYS[3], 'building') ~= ARGV[4] then
    return 2
  end
  -- A sequence must not be used twice, even if Redis has lost it, and a sale must not seem older than the one that it
  -- replaces, which the builder may not know. A script takes more than a microsecond, so the clock in microseconds is
  -- above all sequences in use. If the clock was set back, the highest known sequence plus 2^20 is above them.
  local time = redis.call('TIME')
  local sequence, now_us = tonumber(ARGV[12]), tonumber(time[1]) * 1000000 + tonumber(time[2])
  sequence = now_us > sequence and now_us or sequence + 1048576
  redis.call('HSET', KEYS[3], 'epoch', ARGV[5], 'fence', ARGV[2], 'left', ARGV[6], 'per_user_limit', ARGV[7],
    'opens_ms', ARGV[8], 'closes_ms', ARGV[9], 'control', ARGV[10], 'version', ARGV[11] .. '.' .. ARGV[4] .. '.0', 'sequence', string.format('%d', sequence))
  redis.call('HDEL', KEYS[3], 'building')
  redis.call('PUBLISH', ARGV[13], ARGV[14])
else
  return redis.error_reply('ERR unknown step')
end
return 1
