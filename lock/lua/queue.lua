-- The rest of an acquire (see acquire.lua): the lock is held, has waiters, or has a foreign
-- value.

local lock_key, waiters_key, seen_key, fence_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, meta, ttl_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local waits, reliable, alive_ms, claim_ms, grace_ms, queue_ms = string.match(ARGV[4], '^(w?)(r?) (%d+) (%d+) (%d+) (%d+)$')
local own = waits == 'w' and token .. meta or nil -- our entry in the queue
local now_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

local value = redis.pcall('GET', lock_key)
local head = redis.pcall('ZRANGE', waiters_key, 0, 0)
local stored = redis.pcall('GET', fence_key)
local bad = lock_broken(value) or lock_broken(head) or lock_broken(stored)
  or lock_broken(redis.pcall('HLEN', seen_key))
if bad then return bad end

local mine = token .. ':'
if value and string.sub(value, 1, #mine) == mine then
  -- Never shortened, so a repeat that arrives late cannot undo an extension.
  -- If the key has just expired the lock is free (see extend.lua).
  if redis.call('PTTL', lock_key) > ttl_ms or redis.call('PEXPIRE', lock_key, ttl_ms) == 1 then
    return {1, tonumber(string.match(value, '^%d+', #mine + 1) or '0'), 0, now_us}
  end
  value = false
end

if not value and not head[1] then
  local minted = lock_mint(stored, now_us)
  lock_set(lock_key, waiters_key, fence_key, token, meta, minted, ttl_ms)
  return {1, minted, 0, now_us}
end

if own then
  local last = redis.call('ZRANGE', waiters_key, -1, -1, 'WITHSCORES')[2]
  redis.call('ZADD', waiters_key, 'NX', (tonumber(last or '0') or 0) + 1, own)
  redis.call('HSET', seen_key, own, string.format('%.0f', math.floor(now_us / 1000) + tonumber(alive_ms)))
  redis.call('PEXPIRE', waiters_key, queue_ms)
  redis.call('PEXPIRE', seen_key, queue_ms)
  lock_mark(fence_key, stored)
end

if value then
  local left = redis.call('PTTL', lock_key)
  if left ~= -1 then return {0, left, 0, now_us} end
  redis.call('PEXPIRE', lock_key, grace_ms)
  return {0, tonumber(grace_ms), 1, now_us}
end

-- Free although there are waiters: its holder died, or a handover was not
-- claimed. Any caller passes the lock on in the order of arrival.
local next_member = lock_hand_over(lock_key, waiters_key, seen_key, fence_key, own or '', stored, now_us, claim_ms, reliable == 'r')
if next_member and next_member ~= (own or '') then return {0, tonumber(claim_ms), 0, now_us} end
if not next_member and redis.call('ZCARD', waiters_key) > 0 then return {0, 0, 0, now_us} end
if own then lock_leave(waiters_key, seen_key, own) end
local minted = lock_mint(stored, now_us)
lock_set(lock_key, waiters_key, fence_key, token, meta, minted, ttl_ms)
return {1, minted, 0, now_us}
