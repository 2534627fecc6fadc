-- Reads the state of a partition's Redis, which is compared with the database to detect lost or rewound data.
--
-- KEYS 1 the partition's epoch (string)
--      2 the epoch whose sales were loaded to the end (string)
--      3 the lineage of the database that Redis belongs to (string); may be missing
--
-- Returns { epoch or '', run id of the server or '', seconds since its start or -1, loaded epoch or '',
-- lineage or '' }.
--
-- It is a script so that on a cluster, too, the server of the partition replies. The run id is '' if the server does
-- not report it or forbids INFO.

local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
local up = type(info) == 'string' and string.match(info, 'uptime_in_seconds:(%d+)') or '-1'
return {redis.call('GET', KEYS[1]) or '', run, up, redis.call('GET', KEYS[2]) or '', KEYS[3] and redis.call('GET', KEYS[3]) or ''}
