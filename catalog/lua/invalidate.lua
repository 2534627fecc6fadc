-- Forgets an item that has changed, and tells every process.
--
-- KEYS 1 item (hash)
-- ARGV 1 the version that the item has now, 2 how long to remember it, in ms, 3 channel, 4 message
--
-- Returns 1 when something older was forgotten, else 0.
--
-- Atomic, because a process that has heard the message asks here next: it must not find the item as it
-- was. What stays is the version alone, for longer than any loader takes, so that none of them writes
-- back what it read before the change.

local have = redis.call('HGET', KEYS[1], 'version')
local older = not have or tonumber(have) < tonumber(ARGV[1])
if older then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'version', ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
redis.call('PUBLISH', ARGV[3], ARGV[4])
return older and 1 or 0
