package encode

import (
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"
	"time"
)

var someTime = time.Date(2030, 1, 2, 3, 4, 5, 678_900_000, time.UTC)

// A compressed page has the content of the plain one, at any time.
func TestPage_PackedHasTheSameContent(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]*Page{
		"timed": {Kept: true, Head: []byte(`{"text":"` + strings.Repeat("same ", 400) + `"`), Timed: true},
		"fixed": {Kept: true, Head: []byte(`{"text":"` + strings.Repeat("same ", 400) + `"}`)},
		"empty": {Kept: true},
	} {
		for i := range 3 {
			now := someTime.Add(time.Duration(i) * time.Second)
			r, err := gzip.NewReader(bytes.NewReader(p.Packed(nil, now)))
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(r) // it checks the checksum and the length
			if want := p.Plain(nil, now); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %v, unpacked %q\nwant %q", name, err, got, want)
			}
		}
	}
}

func TestPage_Good(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		page *Page
		at   time.Duration
		want bool
	}{
		"no bounds":            {&Page{}, time.Hour, true},
		"before it begins":     {&Page{From: someTime}, -1, false},
		"when it begins":       {&Page{From: someTime}, 0, true},
		"just before its end":  {&Page{Until: someTime.Add(time.Second)}, time.Second - 1, true},
		"at its end":           {&Page{Until: someTime.Add(time.Second)}, time.Second, false},
		"long after its start": {&Page{From: someTime}, 1000 * time.Hour, true},
	} {
		if got := tc.page.Good(someTime.Add(tc.at)); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestTagOf(t *testing.T) {
	t.Parallel()
	one, same, other := TagOf([]byte("a"))[0], TagOf([]byte("a"))[0], TagOf([]byte("b"))[0]
	if one != same || one == other || !strings.HasPrefix(one, `W/"`) || !strings.HasSuffix(one, `"`) {
		t.Errorf("tags %s, %s and %s", one, same, other)
	}
}
