package worker

import (
	"strings"
	"testing"

	"flashsale/queue"
)

func TestPlainReason(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{
		"":                           "",
		"bad":                        "bad",
		"commit order 7: constraint": "commit order {n}: constraint",
		"order 0197a0f2-3c4d-7abc-8def-0123456789ab: no": "order {id}: no",
		"0197A0F2-3C4D-7ABC-8DEF-0123456789AB":           "{id}",
		"x:0197a0f2-3c4d-7abc-8def-0123456789ab":         "x:{id}",
		"0197a0f2-3c4d-7abc-8def-0123456789abc":          "{id}-{n}c{n}d-{n}abc-{n}def-{id}",
		"request 6f1d2c3b4a59-1k":                        "request {id}-{n}k",
		"at 0xc000123":                                   "at {id}",
		"key abcDEF0123456789xyz":                        "key {id}",
		"dial tcp 10.0.0.12:6379":                        "dial tcp {n}.{n}.{n}.{n}:{n}",
		"took 1.5s":                                      "took {n}.{n}s",
		"deadbeef and SQLITE_CONSTRAINT (1555)":          "deadbeef and SQLITE_CONSTRAINT ({n})",
		"item-12 für é7":                                 "item-{n} für é{n}",
		"bad \xff byte":                                  "bad \xff byte",
		strings.Repeat("word ", 110):                     strings.TrimSpace(strings.Repeat("word ", 102)),
		strings.Repeat("x", 600):                         strings.Repeat("x", 512),
		strings.Repeat("1 ", 400):                        strings.Repeat("{n} ", 128),
	} {
		if got := plainReason(reason); got != want {
			t.Errorf("%q: %q, want %q", reason, got, want)
		}
	}
}

// The group of a letter is the same whether its reason is read whole or only its start.
func FuzzPlainReason(f *testing.F) {
	f.Add("order 0197a0f2-3c4d-7abc-8def-0123456789ab: " + strings.Repeat("é1 ", 300))
	f.Fuzz(func(t *testing.T, reason string) {
		reason = strings.ToValidUTF8(reason, "?")
		start := strings.ToValidUTF8(reason[:min(len(reason), queue.BriefReason)], "")
		plain := plainReason(reason)
		if len(plain) > queue.BriefReason {
			t.Errorf("%d bytes", len(plain))
		}
		if plainReason(start) != plain {
			t.Errorf("%q, of the start %q", plain, plainReason(start))
		}
	})
}
