-- Settles, renews or restores one node's part of a lock that a quorum of
-- independent nodes grants.
--
-- KEYS: 1 lock, 2 fence
-- ARGV: 1 token, 2 fencing token of the whole lock, 3 ":<metadata>" or "", 4
--       TTL ms, 5 "1" to take the lock if it is free
-- Returns 1; 0 if another holds it; -1 if it is free and was not to be taken
--
-- Atomic, because between comparing and writing the lock could pass to another.
-- The key's TTL is never shortened, and the stored fencing token never falls: the
-- next holder on this node gets a greater one than the whole lock has.

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' and value.err then return 0 end
local mine = ARGV[1] .. ':'
if not value or string.sub(value, 1, #mine) ~= mine then
  if value then return 0 end
  if ARGV[5] ~= '1' then return -1 end
end
local left, ttl = redis.call('PTTL', KEYS[1]), ARGV[4]
if left > tonumber(ttl) then ttl = left end
local whole = mine .. ARGV[2] .. ARGV[3]
-- A Redis at its memory limit refuses SET as the first write of a script, but not PEXPIRE, nor SET after it: a key that
-- still has this node's own fencing token is renewed, too. One that has just expired is set.
if not value or redis.call('PEXPIRE', KEYS[1], ttl) == 0 or value ~= whole then
  redis.call('SET', KEYS[1], whole, 'PX', ttl)
end
local stored = redis.pcall('GET', KEYS[2])
if type(stored) ~= 'table' and (not stored or tonumber(string.match(stored, '^%d+') or '0') < tonumber(ARGV[2])) then
  redis.call('SET', KEYS[2], ARGV[2], 'PX', 86400000) -- a day, see handover.lua
end
return 1
