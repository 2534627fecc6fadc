-- Reads how a partition's Redis stands: what to compare with the database, to see whether it has lost or
-- rewound data.
--
-- KEYS 1 the partition's epoch (string)
--      2 the epoch whose sales were loaded to the end (string)
--
-- Returns { epoch or '', run id of the server or '', seconds since its start or -1, loaded epoch or '' }. It is a script so that the
-- answer is that of the server which serves the partition, on a cluster too; one that does not tell, or forbids
-- the question, has no run id.

local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
local up = type(info) == 'string' and string.match(info, 'uptime_in_seconds:(%d+)') or '-1'
return {redis.call('GET', KEYS[1]) or '', run, up, redis.call('GET', KEYS[2]) or ''}
