package catalog

import (
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestItem_State(t *testing.T) {
	t.Parallel()
	opens := time.Date(2026, 11, 27, 9, 0, 0, 0, time.UTC)
	closes := opens.Add(time.Hour)
	const tick = time.Millisecond
	for name, c := range map[string]struct {
		item Item
		now  time.Time
		want State
	}{
		"before the opening":        {Item{StockLeft: 1}, opens.Add(-tick), StateScheduled},
		"at the opening":            {Item{StockLeft: 1}, opens, StateOpen},
		"last moment":               {Item{StockLeft: 1, ClosesAt: closes}, closes.Add(-tick), StateOpen},
		"at the end":                {Item{StockLeft: 1, ClosesAt: closes}, closes, StateClosed},
		"no end":                    {Item{StockLeft: 1}, opens.AddDate(50, 0, 0), StateOpen},
		"nothing left":              {Item{}, opens, StateSoldOut},
		"less than nothing":         {Item{StockLeft: -1}, opens, StateSoldOut},
		"nothing left, not open":    {Item{}, opens.Add(-tick), StateScheduled},
		"nothing left, ended":       {Item{ClosesAt: closes}, closes, StateClosed},
		"paused":                    {Item{StockLeft: 1, Control: ControlPaused}, opens, StatePaused},
		"paused, nothing left":      {Item{Control: ControlPaused}, opens, StatePaused},
		"paused, not open":          {Item{StockLeft: 1, Control: ControlPaused}, opens.Add(-tick), StateScheduled},
		"paused, ended":             {Item{StockLeft: 1, Control: ControlPaused, ClosesAt: closes}, closes, StateClosed},
		"closed by hand":            {Item{StockLeft: 1, Control: ControlClosed}, opens, StateClosed},
		"closed by hand, scheduled": {Item{StockLeft: 1, Control: ControlClosed}, opens.Add(-tick), StateClosed},
	} {
		c.item.OpensAt = opens
		if got := c.item.State(c.now); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestValidID(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{
		"a": true, "0": true, "a-b-9": true, "a-": true, strings.Repeat("x", 64): true,
		"": false, "-a": false, "A": false, "a_b": false, "a b": false, "a\n": false, "\na": false, "ä": false, "a/b": false,
		"a\x00": false, strings.Repeat("x", 65): false,
	} {
		if got := ValidID(id); got != want {
			t.Errorf("%q: %v, want %v", id, got, want)
		}
	}
}

// FuzzValidID: the hand-written check agrees with the contract's expression.
func FuzzValidID(f *testing.F) {
	for _, id := range []string{"", "a", "-a", "a-", "A", "a_b", "ä", "a\n", strings.Repeat("x", 64), strings.Repeat("x", 65)} {
		f.Add(id)
	}
	contract := regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)
	f.Fuzz(func(t *testing.T, id string) {
		if got, want := ValidID(id), contract.MatchString(id); got != want {
			t.Fatalf("%q: %t, want %t", id, got, want)
		}
	})
}

func BenchmarkValidID(b *testing.B) {
	for b.Loop() {
		if !ValidID("sneaker-2026-limited") {
			b.Fatal("refused")
		}
	}
}
