-- Keeps a held lock for at least so long from now.
--
-- KEYS: 1 lock, 2 forced (why a lock was taken from its holder, see force_release.lua)
-- ARGV: 1 value the lock key must hold, "<token>:<fence>[:<metadata>]", 2 TTL
--       ms, 3 token
-- Returns 1, or 0 when the lock is not held with this value, or in place of 0
--         the reason why it was taken by force, if it was
--
-- Atomic, because between comparing and extending the lock could pass to
-- another. It never shortens: a call that arrives late, after a newer one, then
-- cannot let the key lapse before the holder expects it.

if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
  local forced = redis.pcall('GET', KEYS[2])
  if type(forced) == 'string' and string.sub(forced, 1, #ARGV[3] + 1) == ARGV[3] .. ' ' then
    return string.sub(forced, #ARGV[3] + 2)
  end
  return 0
end
if redis.call('PTTL', KEYS[1]) <= tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
