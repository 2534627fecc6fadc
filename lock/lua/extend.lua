-- Extends a held lock to at least this TTL from now.
--
-- KEYS: 1 lock. One key only: while a cluster moves a slot, it runs a script on
--       keys that exist in part on neither side, and a renewal cannot wait.
-- ARGV: 1 value the lock key must hold, "<token>:<fence>[:<metadata>]", 2 TTL ms
-- Returns 1, or 0 when the lock is not held with this value.
--
-- Atomic, because between comparing and extending the lock could pass to
-- another. It never shortens: a call that arrives late, after a newer one, then
-- cannot make the key expire before the holder expects it. In the embedded engine
-- time passes while a script runs, so the key may expire after the comparison:
-- the result is whether there was a key to extend.

if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then return 1 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
