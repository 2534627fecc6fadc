package service

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// A reader that has stopped blocks neither the writers nor the stop. When it reads again it gets
// the lines that were kept, in order, and the number of the others.
func TestLogQueue_ReaderStopped(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	q := newLogQueue(w, func(n int64) { fmt.Fprintf(w, "dropped %d\n", n) })
	line := make([]byte, 0, 32)
	const extra = 10
	// The queue's goroutine may or may not have taken the first line.
	for i := range logLines + 1 + extra {
		line = fmt.Appendf(line[:0], "line %d\n", i)
		if n, err := q.Write(line); n != len(line) || err != nil {
			t.Fatalf("write line %d: %d, %v", i, n, err)
		}
	}
	gone := make(chan time.Time)
	close(gone)
	q.flush(gone) // returns although the reader has stopped
	in := bufio.NewScanner(r)
	next := func() string {
		if !in.Scan() {
			t.Fatalf("the log ends: %v", in.Err())
		}
		return in.Text()
	}
	kept, dropped := 0, 0
	got := next()
	for ; got == fmt.Sprintf("line %d", kept); got = next() {
		kept++
	}
	if _, err := fmt.Sscanf(got, "dropped %d", &dropped); err != nil || dropped < extra || dropped > extra+1 || kept+dropped != logLines+1+extra {
		t.Errorf("after %d lines in order: %q (%v), want the number of the others, %d or %d", kept, got, err, extra, extra+1)
	}
	<-q.done
}

// A flush waits for the lines that were written before.
func TestLogQueue_Flush(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	q := newLogQueue(w, func(n int64) { t.Errorf("%d lines were dropped", n) })
	read := make(chan string)
	go func() {
		var all []byte
		for in := bufio.NewScanner(r); in.Scan(); {
			all = append(all, in.Bytes()...)
		}
		read <- string(all)
	}()
	for _, line := range []string{"a\n", "b\n", "c\n"} {
		if _, err := io.WriteString(q, line); err != nil {
			t.Fatal(err)
		}
	}
	q.flush(nil)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got := <-read; got != "abc" {
		t.Errorf("the log has %q", got)
	}
}

// TestStandardLog: what servers send without a request is a debug line; other lines of libraries are warnings.
func TestStandardLog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := standardLog{zerolog.New(&out)}
	for _, line := range []string{"Unsolicited response received on idle HTTP channel starting with \"x\"; err=<nil>\n", "another line\n"} {
		if n, err := io.WriteString(w, line); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	const want = `{"level":"debug","from":"log","message":"Unsolicited response received on idle HTTP channel starting with \"x\"; err=<nil>"}
{"level":"warn","from":"log","message":"another line"}
`
	if out.String() != want {
		t.Errorf("got %s, want %s", out.String(), want)
	}
}
