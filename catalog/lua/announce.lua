-- Raises the generation of the set of ids, and announces the new id to every process.
--
-- KEYS 1 generation (hash)
-- ARGV 1 a random word, which identifies the count if this call begins it, 2 channel, 3 the new id, or '' to
--      only read the generation
--
-- Returns the generation, "<word>:<count>".
--
-- Atomic, so that the messages come in the order of their counts: a process that has received every count has
-- every id. The word distinguishes a new count from an earlier one that was lost with Redis's data.

redis.call('HSETNX', KEYS[1], 'word', ARGV[1])
local count = redis.call('HINCRBY', KEYS[1], 'count', ARGV[3] ~= '' and 1 or 0)
local generation = redis.call('HGET', KEYS[1], 'word') .. ':' .. string.format('%d', count)
if ARGV[3] ~= '' then
  redis.call('PUBLISH', ARGV[2], 'created ' .. generation .. ' ' .. ARGV[3])
end
return generation
