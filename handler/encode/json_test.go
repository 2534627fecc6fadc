package encode

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// FuzzString: the result is escaped JSON, and decodes to the same text.
func FuzzString(f *testing.F) {
	for _, s := range []string{"", "plain", "\"\\\x00\x1f\x7f\n\r\t", "<b>&", "\u2028\u2029", "ä😀", "\xff\xed\xa0\x80", "a\xc3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b := String(nil, s)
		var got string
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%q became %s: %v", s, b, err)
		}
		if want := strings.ToValidUTF8(s, "\ufffd"); utf8.ValidString(s) && got != want {
			t.Fatalf("%q reads back as %q", s, got)
		}
		if strings.ContainsAny(string(b), "<>&\u2028\u2029\x7f") {
			t.Fatalf("%q became %s", s, b)
		}
	})
}

func TestAppendTime(t *testing.T) {
	t.Parallel()
	const layout = `"2006-01-02T15:04:05.000Z"`
	for _, at := range []time.Time{
		someTime, time.Unix(0, 0), time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC),
		time.Date(2024, 2, 29, 1, 2, 3, 45_000_000, time.FixedZone("x", -5*3600)),
	} {
		if got, want := string(appendTime(nil, at)), at.UTC().Truncate(time.Millisecond).Format(layout); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
