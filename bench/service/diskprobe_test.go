package main

import "testing"

func TestDiskProbe(t *testing.T) {
	t.Parallel()
	p, err := newDiskProbe(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.close(); err != nil { // the first write has ended
		t.Error(err)
	}
	if d := p.take(); d <= 0 {
		t.Errorf("longest write %v", d)
	}
	if d := p.take(); d != 0 {
		t.Errorf("%v after it was taken", d)
	}

	failing, err := newDiskProbe(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := failing.file.Close(); err != nil {
		t.Fatal(err)
	}
	<-failing.stopped // the next write fails
	if err := failing.close(); err == nil {
		t.Error("a failed write is not reported")
	}
}
