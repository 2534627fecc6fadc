-- Adds tasks: those that are due become ready, the others delayed.
--
-- KEYS  those of fragment_common.lua
-- ARGV  1 max_length; then per task: id, payload, due in ms since 1970 (0: now), priority, options (see
--       fragment_common.lua)
-- Returns a string with one letter per task: K added, D duplicate (the id exists in any state), F full
-- Atomic because the room and the ids must not change between the look and the write; a task is
-- either written whole or not at all.

return table.concat(queue_put(2, (#ARGV - 1) / 5, tonumber(ARGV[1])))
