package backend

import "time"

// MaxClockSkew is by how much the clocks of this host and of Redis may differ
// before the operator is told to synchronize them.
const MaxClockSkew = time.Second

// ClockEffect says what a difference of the clocks leads to. Sales, expiries and
// payments are safe from it: they go by Redis's clock on every host.
const ClockEffect = "sales and payment deadlines follow the Redis clock, but token expiry, order ids and webhook timestamps follow this host's"

// ClockFix is what to do about it.
const ClockFix = "synchronize both with NTP"
