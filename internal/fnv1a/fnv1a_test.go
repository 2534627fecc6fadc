package fnv1a_test

import (
	"hash/fnv"
	"testing"

	"flashsale/internal/fnv1a"
)

func TestAdd(t *testing.T) {
	for _, text := range []string{"", "a", "alice key-1", "\x00\xff\u00e9"} {
		want := fnv.New64a()
		if _, err := want.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		half := len(text) / 2
		if got := fnv1a.Add(fnv1a.Add(fnv1a.Start, text[:half]), text[half:]); got != want.Sum64() {
			t.Errorf("hash of %q is %x, want %x", text, got, want.Sum64())
		}
	}
}
