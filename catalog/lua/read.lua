-- Reads an item's entry.
--
-- KEYS 1 item (hash)
--
-- Returns an empty list if there is no usable entry, else the version (0: there is no such item), the age in
-- milliseconds, and the item's JSON ('' with version 0).
--
-- It is a script because the age is the difference of two times of Redis: the clocks of the processes may differ
-- by more than the life of an entry.

local found = redis.call('HMGET', KEYS[1], 'version', 'at', 'body')
if not found[1] or not found[2] or not found[3] then
  return {}
end
local time = redis.call('TIME')
local now_ms = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
return {found[1], string.format('%d', math.max(0, now_ms - tonumber(found[2]))), found[3]}
