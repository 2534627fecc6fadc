-- Leaves a token on the wake list unless one is there.
--
-- KEYS  1 ready, 2 delayed, 3 leased, 4 body, 5 meta, 6 clock, 7 wake, 8 dead, 9 unique, 10 unique_until, 11 paused,
--       12 done, 13 counts, 14 rate
-- Returns nothing
-- Atomic because looking and pushing apart would let the list grow.

queue_wake(0)
return {}
