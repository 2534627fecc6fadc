-- Lists what is recorded of worker processes.
--
-- KEYS  1 workers: see beat.lua
-- Returns strings: the time in ms since 1970, then each field of the hash with its value
-- Atomic so that the time is that of the entries.

local time = redis.call('TIME')
local reply = redis.call('HGETALL', KEYS[1])
table.insert(reply, 1, string.format('%d', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)))
return reply
