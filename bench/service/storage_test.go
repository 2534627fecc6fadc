package main

import (
	"bytes"
	"testing"
)

func TestMeasureStorage(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := measureStorage(t.Context(), tiny(t, &out)); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, name := range []string{"storage_kb_per_order", "storage_commits_full/empty"} {
		if v := figure(t, out.String(), name); !(v > 0) {
			t.Errorf("%s is %v", name, v)
		}
	}
}
