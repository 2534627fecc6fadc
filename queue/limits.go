package queue

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

const (
	minRate  = 1e-6                // one task in eleven days
	maxRate  = 100_000             // tasks per second; the state counts whole microseconds
	maxBurst = 1_000_000           // tasks
	maxFill  = 30 * 24 * time.Hour // how long an exhausted burst may take to come back
)

// validateLimits checks the limits and what belongs to them, before defaults are filled in.
func (c Config) validateLimits() error {
	switch {
	case c.MaxLeased < 0:
		return fmt.Errorf("%w: MaxLeased %d is negative", ErrConfig, c.MaxLeased)
	case c.Rate == 0 && c.Burst != 0:
		return fmt.Errorf("%w: Burst %d without Rate", ErrConfig, c.Burst)
	case c.Rate == 0:
		return nil
	case !(c.Rate >= minRate && c.Rate <= maxRate): // so that NaN is refused too
		return fmt.Errorf("%w: Rate %v, want 0 for none or %v to %v a second", ErrConfig, c.Rate, minRate, maxRate)
	case c.Burst < 0 || c.Burst > maxBurst:
		return fmt.Errorf("%w: Burst %d, want 0 for the default or 1 to %d", ErrConfig, c.Burst, maxBurst)
	case float64(c.Burst)/c.Rate > maxFill.Seconds():
		return fmt.Errorf("%w: Burst %d at Rate %v takes longer than %v to fill", ErrConfig, c.Burst, c.Rate, maxFill)
	}
	return nil
}

// defaultBurst is a second's worth, so that workers which look as often get
// whole batches of a high rate.
func defaultBurst(rate float64) int { return max(1, int(math.Ceil(rate))) }

// limitArgs are the limits as dequeue.lua takes them.
func (c Config) limitArgs() []any {
	interval := "0"
	if c.Rate > 0 {
		interval = strconv.FormatFloat(float64(time.Second/time.Microsecond)/c.Rate, 'f', -1, 64)
	}
	return []any{c.MaxLeased, interval, c.Burst}
}

// limited is what the scripts that end leases are told: "1" where workers may
// sleep although tasks are ready, because MaxLeased of them were leased.
func (c Config) limited() string {
	if c.MaxLeased > 0 {
		return "1"
	}
	return "0"
}
