-- Removes the entry of an item that has changed, and notifies every process.
--
-- KEYS 1 item (hash)
-- ARGV 1 the item's present version, 2 how long to keep it, in ms, 3 channel, 4 message
--
-- Returns 1 when the entry was missing or older, else 0.
--
-- Atomic, because a process that has received the message reads the entry next: it must not find the old item.
-- Only the version stays, for longer than any load takes, so that no load writes back an item that it read
-- before the change.

local have = redis.call('HGET', KEYS[1], 'version')
local older = not have or tonumber(have) < tonumber(ARGV[1])
if older then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'version', ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
redis.call('PUBLISH', ARGV[3], ARGV[4])
return older and 1 or 0
