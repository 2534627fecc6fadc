-- Leaves a token on the wake list unless one is there.
--
-- KEYS  those of fragment_common.lua
-- Returns nothing
-- Atomic because looking and pushing apart would let the list grow.

queue_wake(0)
return {}
