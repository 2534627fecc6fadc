-- Stores an item as a load has read it, unless Redis has a later version.
--
-- KEYS 1 item (hash)
-- ARGV 1 version (0: there is no such item), 2 age of the reading in ms, 3 life of the entry in ms,
--      4 the item's JSON ('' with version 0)
--
-- Returns 1, or 0 when nothing was written.
--
-- Atomic, because a load may be slower than a change of the item: if the change came between reading the version
-- and the write, the older item would stay until it expires. A change stores the new version (invalidate.lua), so
-- the older item is refused here. An item never becomes unknown again, so "no such item" is version 0, below all
-- others.

local have = redis.call('HMGET', KEYS[1], 'version', 'at')
local version = tonumber(ARGV[1])
local time = redis.call('TIME')
local at = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000) - tonumber(ARGV[2])
if have[1] then
  local known = tonumber(have[1])
  if known > version or (known == version and have[2] and tonumber(have[2]) >= at) then
    return 0
  end
end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'at', string.format('%d', at), 'body', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
