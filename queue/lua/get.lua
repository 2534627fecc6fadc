-- Looks one task up.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 id
-- Returns nothing where the task is in no state, else: state, score of that state, attempt, priority,
--       tag and text of its meta, "1" and the payload, or "0" where the body is missing, options
-- Atomic because a task that changes sets between two looks would seem to be in none.

local id = ARGV[1]
local states = {{1, 'ready'}, {2, 'delayed'}, {3, 'leased'}, {8, 'dead'}}
for i = 1, #states do
  local score = redis.call('ZSCORE', KEYS[states[i][1]], id)
  if score then
    local attempt, priority, tag, text, options = queue_parse(redis.call('HGET', KEYS[5], id))
    local body = redis.call('HGET', KEYS[4], id)
    return {states[i][2], string.format('%d', tonumber(score)), string.format('%d', attempt),
      string.format('%d', priority), tag, text, body and '1' or '0', body or '', options}
  end
end
return {}
