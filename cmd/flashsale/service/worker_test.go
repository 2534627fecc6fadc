package service

import (
	"testing"
	"time"
)

func TestLingerBusy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		linger   time.Duration
		postgres bool
		want     time.Duration
	}{
		"SQLite":           {20 * time.Millisecond, false, busyLinger},
		"a shorter linger": {time.Millisecond, false, time.Millisecond},
		"no linger":        {0, false, 0},
		"Postgres":         {20 * time.Millisecond, true, 0},
	} {
		if got := lingerBusy(c.linger, c.postgres); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
