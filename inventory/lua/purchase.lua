-- Sells to a batch of buyers of one item.
--
-- KEYS 1 lock, 2 lock's waiters, 3 sale (hash), 4 idempotency (hash), 5 buyers (hash; see fragment_buyer.lua),
--      6 log of queued orders (stream), 7 accepted keys (string), 8 lock's fence, 9.. the task queue's keys (EnqueueKeys)
-- ARGV 1 lock value, 2 fencing token (value empty: the script holds the lock only while it runs, and 2 is the time
--      in ms after which it must not run), 3 epoch, 4 task queue's bound, 5 the highest sequence of the sale that
--      the caller has received, 6 number of purchases n, 7 their records for the log, 24 bytes each,
--      8 the hashes of their keys, 4 bytes each, 9 the item's version from which the caller made them (0: any),
--      10 the build of the sale of which the caller has accepted keys, 11 how many of them it has, 12 id of the
--      task for the accepted orders, 13 the task's lines, one per purchase (see inventory/accepted),
--      then per purchase its buyer and the field's value in KEYS 5 if it is accepted as the buyer's first, and
--      then per purchase its quantity
--
-- Returns { status, waiting, verdicts, left, version, now_ms, opens_ms, closes_ms, sequence, limit, accepted,
--           more accepted keys, replayed order ids ... }.
--   status    'ok', or why no purchase was processed: 'lost' (the lock is not held by this value), 'held' (it
--             is held or waited for), 'late' (it is too late, or the clock was set back: the caller has to
--             acquire the lock),
--             'fenced' (the sale has seen a later holder), 'missing' (the sale is not loaded, or not whole, or
--             marked by an unfinished change, see suspend.lua), 'epoch' (the sale was loaded under another
--             epoch), 'rewound' (the sale has a lower sequence than the caller has received: Redis was
--             restored from older data); then only `waiting` follows
--   waiting   how many processes wait for the lock
--   sequence  counts the scripts that took or returned units. The task has the epoch, a dot and the sequence, so
--             that the database records which sequence Redis has reached
--   verdicts  one character per purchase, in order:
--             A accepted (also when this very order was accepted by an earlier run of this script),
--             R replay of an earlier order, whose id is the next of the replayed ids,
--             K key used before for another quantity, Q more than the limit in one order, L over the
--             buyer's limit, S not enough left, O not open yet, C closed, P paused, F task queue full,
--             V it would be accepted, but the price of the item's version ARGV 9 may differ from the sale's,
--             U it would be accepted, but an earlier run of this call has accepted others: it needs another task
--   accepted  how many keys of accepted orders the sale has, if it is open and nothing is left; else -1.
--             Those that the caller does not have follow, up to 64 KiB. A caller with all of them can tell
--             which requests are certainly not repeats. Also -1 if an accepted key is missing.
--
-- Atomic because it is one script; all checks come before the first write, since Redis does not roll back a
-- script that fails half-way. A repeat of the same call changes nothing: an order's id under its idempotency
-- key shows that the order was accepted. So a call with an unknown outcome can be sent again.
--
-- The lock lets only one process at a time sell the item, but the script does not rely on it: it refuses unless
-- the lock's key has the caller's value, and unless the caller's fencing token is at least the highest that the
-- sale has seen. Without a value, it refuses unless the lock is free, and has a new token of its own.

local first = 13   -- arguments before the first purchase
local record = 24  -- bytes of a purchase in the log
local hash = 4     -- bytes of an accepted key
local page = 65536 -- bytes of accepted keys in one reply
local chunk = 100  -- bounds unpack; the embedded engine's Lua stack is small

local waiting, fence = 0, ARGV[2]
local instant = ARGV[1] == ''
if instant then
  fence = lock_instant(KEYS[1], KEYS[2], KEYS[8])
  if fence == nil then
    return {'held', 0}
  end
  if not fence or tonumber(fence) > tonumber(ARGV[2]) * 1000 then
    return {'late', 0}
  end
else
  waiting = lock_guard(KEYS[1], KEYS[2], ARGV[1])
  if waiting < 0 then
    return {'lost', 0}
  end
end

local sale = redis.call('HMGET', KEYS[3], 'epoch', 'fence', 'left', 'per_user_limit', 'opens_ms', 'closes_ms', 'control', 'version', 'changing', 'sequence', 'same_price')
for _, field in ipairs({1, 3, 4, 5, 6, 8}) do
  if not sale[field] then  -- not loaded, or damaged, which a load corrects
    return {'missing', waiting}
  end
end
if sale[9] then
  return {'missing', waiting}
end
if sale[1] ~= ARGV[3] then
  return {'epoch', waiting}
end
if (tonumber(sale[2] or '0') or 0) > tonumber(fence) then
  return {'fenced', waiting}
end
local sequence = tonumber(sale[10] or '0') or 0
if sequence < tonumber(ARGV[5]) then
  return {'rewound', waiting}
end

local left, limit = tonumber(sale[3]), tonumber(sale[4])
local opens_ms, closes_ms = tonumber(sale[5]), tonumber(sale[6])
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)

local shut
if sale[7] == 'closed' or (closes_ms > 0 and now_ms >= closes_ms) then
  shut = 'C'
elseif now_ms < opens_ms then
  shut = 'O'
elseif sale[7] == 'paused' then
  shut = 'P'
end

local item_version, build = string.match(sale[8], '^(%d+)%.(%d+)')
local outdated = ARGV[9] ~= '0' and ARGV[9] ~= item_version
if outdated and sale[11] then
  local from, to = string.match(sale[11], '^(%d+)%-(%d+)$')  -- see adjust.lua
  if to == item_version and tonumber(ARGV[9]) >= tonumber(from) and tonumber(ARGV[9]) <= tonumber(to) then
    outdated = false
  end
end

local n = tonumber(ARGV[6])
local buyers, stored = {}, {}
for i = 1, n do
  buyers[i] = ARGV[first + 2 * i - 1]
end
for from = 1, n, chunk do
  local to = math.min(from + chunk - 1, n)
  local values = redis.call('HMGET', KEYS[5], unpack(buyers, from, to))
  for i = from, to do
    stored[i] = values[i - from + 1]
  end
end

-- Most buyers are new, and only once in the batch. Of the other purchases:
local by = {}                   -- the place of the first purchase, by buyer
local firsts = {}               -- that place, if it is not the purchase's own
local several = {}              -- by that place: the buyer has several in the batch
local held = {}                 -- by that place: the units that the buyer holds
local kept = {}                 -- by that place: order and key in the buyer's value
local own, keys = {}, {}        -- the order that it would be, and its key
local fields = {}               -- its buyer and key
local orders, unread = {}, {}   -- orders by buyer and key; those that are not in the buyers' values
local function parse(i)
  local _
  _, own[i], keys[i] = sale_buyer(ARGV[first + 2 * i])
  return buyers[i] .. ' ' .. keys[i]
end
for i = 1, n do
  local j = by[buyers[i]]
  if not j then
    by[buyers[i]], j = i, i
    if stored[i] then
      local units, order, key = sale_buyer(stored[i])
      if not units then
        return {'missing', waiting}  -- damaged, or of an older version
      end
      held[i], kept[i] = units, order .. ' ' .. key
      orders[buyers[i] .. ' ' .. key] = order
    end
  else
    firsts[i], several[j] = j, true
  end
  if stored[i] or firsts[i] then
    fields[i] = parse(i)
    if stored[i] and not orders[fields[i]] then
      unread[#unread + 1] = fields[i]
    end
  end
end
for from = 1, #unread, chunk do
  local to = math.min(from + chunk - 1, #unread)
  local values = redis.call('HMGET', KEYS[4], unpack(unread, from, to))
  for i = from, to do
    orders[unread[i]] = values[i - from + 1]
  end
end

-- An earlier run of this call may have accepted other purchases of the batch, if its reply was lost. Its task must
-- not be replaced.
local repeated = queue_known(8, 1, {ARGV[12]})[1]
for i = 1, n do
  local order = stored[i] and orders[fields[i]]
  if order then
    repeated = repeated or order == own[i] or order == own[i] .. ':r'
  end
end

local room = queue_room(8, tonumber(ARGV[4]))
redis.call('XLEN', KEYS[6])  -- these fail for a key of another type, before the first write
redis.call('HLEN', KEYS[4])
local verdicts, replayed = {}, {}
local places, taken = {}, 0
local new, further, changed = {}, {}, {}  -- buyers' values; further orders; places of the other changed values
for i = 1, n do
  local quantity = ARGV[first + 2 * n + i]
  local units = tonumber(quantity)
  local j = firsts[i] or i
  local order = fields[i] and orders[fields[i]]
  local verdict
  if order then
    -- "<quantity>:<order id>", followed by ":r" once the units were released. The quantity is the fingerprint of the
    -- request.
    local colon = string.find(order, ':', 1, true)
    local id = string.sub(order, colon + 1, string.sub(order, -2) == ':r' and -3 or -1)
    if string.sub(order, 1, colon - 1) ~= quantity then
      verdict = 'K'
    elseif quantity .. ':' .. id == own[i] then
      verdict = 'A'
    else
      verdict = 'R'
      replayed[#replayed + 1] = id
    end
  elseif units > limit then
    verdict = 'Q'
  elseif shut then
    verdict = shut
  elseif (held[j] or 0) + units > limit then
    verdict = 'L'
  elseif units > left then
    verdict = 'S'
  elseif outdated then
    verdict = 'V'
  elseif taken >= room then
    verdict = 'F'
  elseif repeated then
    verdict = 'U'
  else
    verdict = 'A'
    left = left - units
    taken = taken + 1
    places[taken] = i
    if not stored[i] and not firsts[i] and not several[i] then
      new[#new + 1] = buyers[i]
      new[#new + 1] = ARGV[first + 2 * i]
    else
      fields[i] = fields[i] or parse(i)
      orders[fields[i]] = own[i]
      held[j] = (held[j] or 0) + units
      changed[j] = true
      if not kept[j] then
        kept[j] = own[i] .. ' ' .. keys[i]
      else
        further[#further + 1] = fields[i]
        further[#further + 1] = own[i]
      end
    end
  end
  verdicts[i] = verdict
end

if taken > 0 then
  local lines = ARGV[13]
  if taken < n then
    local kept, k, place = {}, 0, 0
    for line in string.gmatch(lines, '[^\n]+') do
      place = place + 1
      if places[k + 1] == place then
        k = k + 1
        kept[k] = line
      end
    end
    lines = table.concat(kept, '\n')
  end
  -- This write comes first because it can fail: on a key of another type or a string of 512 MB.
  local hashes = ARGV[8]
  if taken < n then
    for i = 1, taken do
      places[i] = string.sub(hashes, hash * (places[i] - 1) + 1, hash * places[i])
    end
    hashes = table.concat(places)
  end
  redis.call('APPEND', KEYS[7], hashes)
  if instant then
    lock_instant_end(KEYS[8], fence)
  end
  sequence = sequence + 1
  redis.call('HSET', KEYS[3], 'left', string.format('%d', left), 'fence', fence, 'sequence', string.format('%d', sequence))
  for j in pairs(changed) do
    new[#new + 1] = buyers[j]
    new[#new + 1] = string.format('%d', held[j]) .. ' ' .. kept[j]
  end
  for from = 1, #new, 2 * chunk do
    redis.call('HSET', KEYS[5], unpack(new, from, math.min(from + 2 * chunk - 1, #new)))
  end
  for from = 1, #further, 2 * chunk do
    redis.call('HSET', KEYS[4], unpack(further, from, math.min(from + 2 * chunk - 1, #further)))
  end
  -- One entry per batch: one per order would take a third of this script's time.
  local records = ARGV[7]
  if taken < n then
    local accepted = {}
    for i = 1, n do
      if verdicts[i] == 'A' then
        accepted[#accepted + 1] = string.sub(records, record * (i - 1) + 1, record * i)
      end
    end
    records = table.concat(accepted)
  end
  redis.call('XADD', KEYS[6], '*', 'o', records)
  -- All orders are one task, a parcel: see inventory/accepted.
  local parcel = string.format('p1\t%s.%d\n', ARGV[3], sequence) .. lines
  queue_add(8, now_us, 1, {ARGV[12]}, {parcel}, nil, {',yparcel' .. (taken > 1 and ',n' .. taken or '')})
end

local accepted, more = -1, ''
if left <= 0 and not shut then
  accepted = redis.call('STRLEN', KEYS[7]) / hash
  local from = ARGV[10] == build and tonumber(ARGV[11]) or 0
  if accepted < redis.call('HLEN', KEYS[4]) + redis.call('HLEN', KEYS[5]) then  -- loaded or sold by a version that adds no keys
    accepted = -1
  elseif from < accepted then
    more = redis.call('GETRANGE', KEYS[7], string.format('%d', hash * from), string.format('%d', hash * from + page - 1))
  end
end
local reply = {'ok', waiting, table.concat(verdicts), left, sale[8], now_ms, opens_ms, closes_ms, sequence, limit, accepted, more}
for i = 1, #replayed do
  reply[12 + i] = replayed[i]
end
return reply
