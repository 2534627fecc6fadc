//go:build unix

package main

import (
	"errors"
	"slices"
	"testing"
)

func TestMoveAddress(t *testing.T) {
	t.Parallel()
	args := []string{"serve", "--db", "d", "--addr", "127.0.0.1:1", "--data-dir", "x"}
	public, moved, err := moveAddress(args)
	if err != nil || public != "127.0.0.1:1" || len(moved) != len(args) || moved[4] == public || args[4] != public {
		t.Errorf("%q, %q, %v", public, moved, err)
	}
	for _, other := range [][]string{nil, {"worker"}, {"worker", "--addr", "127.0.0.1:1"}, {"serve"}, {"serve", "--addr"}} {
		if _, moved, err := moveAddress(other); moved != nil || err != nil {
			t.Errorf("%q: %q, %v", other, moved, err)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if n, all, err := readReports(dir); n != 0 || all != nil || err != nil {
		t.Errorf("nothing: %d, %q, %v", n, all, err)
	}
	r, err := openReport(dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 12 {
		r.count()
	}
	r.add(errors.New("two\nlines"))
	r.add(errors.New("one"))
	r.add(errors.New("one"))
	n, all, err := readReports(dir)
	if n != 12 || !slices.Equal(all, []string{"one", "two; lines"}) || err != nil {
		t.Errorf("%d, %q, %v", n, all, err)
	}
}
