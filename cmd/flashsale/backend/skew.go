package backend

import "time"

// MaxClockSkew is the difference between this host's clock and Redis's above which the service
// warns.
const MaxClockSkew = time.Second

// ClockEffect describes the effect of such a difference. Sales, expiries and payments are not
// affected: they use Redis's clock on every host.
const ClockEffect = "sales and payment deadlines follow the Redis clock, but token expiry, order ids and webhook timestamps follow this host's"

// ClockFix is the fix.
const ClockFix = "synchronize both with NTP"
