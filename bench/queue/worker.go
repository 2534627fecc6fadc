package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
)

// workerCommand makes this binary a worker that the benchmark kills.
const workerCommand = "worker"

// holdsAllLine is printed by the worker when it has all tasks.
const holdsAllLine = "holds all\n"

// runWorker takes tasks whose handlers hang, reports when it has them all, and runs until it
// is killed or ctx ends.
func runWorker(ctx context.Context, args []string, out io.Writer) (err error) {
	f := flag.NewFlagSet(workerCommand, flag.ContinueOnError)
	addr := f.String("addr", "", "of Redis")
	name := f.String("queue", "", "name of the queue")
	ours := f.Bool("ours", true, "our library, not asynq")
	if err := f.Parse(args); err != nil {
		return err
	}
	q, err := openForRecovery(*addr, *name, *ours)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.close()) }()
	var held atomic.Int64
	stop, err := q.start(ctx, func(handling context.Context, batch []int) []error {
		if held.Add(int64(len(batch))) == heldTasks {
			fmt.Fprint(out, holdsAllLine)
		}
		select {
		case <-handling.Done():
		case <-ctx.Done():
		}
		return nil
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return stop()
}

// awaited is a writer that waits for a text.
type awaited struct {
	text []byte
	seen chan struct{} // closed when the text was written

	mu   sync.Mutex
	got  []byte
	once bool
}

func awaitLine(text string) *awaited {
	return &awaited{text: []byte(text), seen: make(chan struct{})}
}

// Write implements io.Writer.
func (a *awaited) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.once {
		return len(p), nil
	}
	a.got = append(a.got, p...)
	if bytes.Contains(a.got, a.text) {
		a.once = true
		close(a.seen)
	}
	return len(p), nil
}
