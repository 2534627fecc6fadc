-- Lists the tasks of one state: ready and delayed in the order in which they are to run, leased by the end
-- of the lease, dead ones the latest first.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 number of the state's key, 2 how many to skip, 3 how many to return, at least 1
-- Returns strings, per task: id, score, attempt, priority, tag and text of its meta, "1" and the payload,
--       or "0" where the body is missing, options
-- Atomic so that each task comes with its own meta and body.

local from, to = tonumber(ARGV[2]), tonumber(ARGV[2]) + tonumber(ARGV[3]) - 1
local range = ARGV[1] == '10' and 'ZREVRANGE' or 'ZRANGE'
local found = redis.call(range, KEYS[tonumber(ARGV[1])], from, to, 'WITHSCORES')
return queue_list(found, #found / 2)
