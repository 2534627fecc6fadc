package queue

import (
	"fmt"
	"time"
)

const (
	maxKeepDone    = 365 * 24 * time.Hour
	defaultMaxDone = 10_000
)

// validateDone checks what is kept of tasks that are done, before defaults are filled in.
func (c Config) validateDone() error {
	switch {
	case c.KeepDone < 0 || c.KeepDone > maxKeepDone:
		return fmt.Errorf("%w: KeepDone %v, want 0 for none or up to %v", ErrConfig, c.KeepDone, maxKeepDone)
	case c.KeepDone == 0 && c.MaxDone != 0:
		return fmt.Errorf("%w: MaxDone %d without KeepDone", ErrConfig, c.MaxDone)
	case c.MaxDone < 0:
		return fmt.Errorf("%w: MaxDone %d, want at least 1", ErrConfig, c.MaxDone)
	}
	return nil
}

// doneArgs are how long and how many done tasks are kept, as the scripts take them.
func (c Config) doneArgs() []any { return []any{ceilMillis(c.KeepDone), c.MaxDone} }
