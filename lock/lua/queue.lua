-- The rest of acquire.lua, after handover.lua: the lock is held, has waiters, or
-- has a foreign value. KEYS, ARGV and replies as there.

local token, meta, flags, ttl_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local alive_ms, claim_ms, grace_ms, queue_ms = string.match(ARGV[5], '(%d+) (%d+) (%d+) (%d+)')
local waits = string.find(flags, 'w', 1, true)
local own = waits and token .. meta or nil -- our entry in the queue
local now_us = lock_now()

local value = redis.pcall('GET', KEYS[1])
local head = redis.pcall('ZRANGE', KEYS[2], 0, 0)
local stored = redis.pcall('GET', KEYS[4])
local bad = lock_broken(value) or lock_broken(head) or lock_broken(stored)
  or lock_broken(redis.pcall('HLEN', KEYS[3]))
if bad then return bad end

local mine = token .. ':'
if value and string.sub(value, 1, #mine) == mine then
  -- Never shortened, so a repeat that arrives late cannot undo an extension.
  -- If the key has just expired the lock is free (see extend.lua).
  if redis.call('PTTL', KEYS[1]) > ttl_ms or redis.call('PEXPIRE', KEYS[1], ttl_ms) == 1 then
    return {1, tonumber(string.match(value, '^%d+', #mine + 1) or '0'), 0, now_us}
  end
  value = false
end

if not value and not head[1] then
  local minted = lock_mint(stored, now_us)
  if own then lock_leave(KEYS[2], KEYS[3], own) end
  lock_set(KEYS[1], KEYS[2], KEYS[4], token, meta, minted, ttl_ms)
  return {1, minted, 0, now_us}
end

if own then
  local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
  redis.call('ZADD', KEYS[2], 'NX', (tonumber(last or '0') or 0) + 1, own)
  redis.call('HSET', KEYS[3], own, string.format('%.0f', math.floor(now_us / 1000) + tonumber(alive_ms)))
  redis.call('PEXPIRE', KEYS[2], queue_ms)
  redis.call('PEXPIRE', KEYS[3], queue_ms)
  lock_mark(KEYS[4], stored)
end

if value then
  local left = redis.call('PTTL', KEYS[1])
  if left ~= -1 then return {0, math.max(left, 0), 0, now_us} end
  redis.call('PEXPIRE', KEYS[1], grace_ms)
  return {0, tonumber(grace_ms), 1, now_us}
end

-- Free although there are waiters: its holder died, or a handover was not
-- claimed. Any caller passes the lock on in the order of arrival.
local next_member = lock_hand_over(own or '', stored, now_us, claim_ms, string.find(flags, 'r', 1, true))
if next_member and next_member ~= (own or '') then return {0, tonumber(claim_ms), 0, now_us} end
if not next_member and redis.call('ZCARD', KEYS[2]) > 0 then return {0, 0, 0, now_us} end
if own then lock_leave(KEYS[2], KEYS[3], own) end
local minted = lock_mint(stored, now_us)
lock_set(KEYS[1], KEYS[2], KEYS[4], token, meta, minted, ttl_ms)
return {1, minted, 0, now_us}
