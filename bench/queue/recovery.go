package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"flashsale/bench/internal/runner"
	"flashsale/internal/pause"
	"flashsale/internal/testing/child"
	"flashsale/queue"
)

const (
	// heldTasks is how many tasks a worker holds when it is killed.
	heldTasks = 64
	// recoveryLease is our lease meanwhile.
	recoveryLease = time.Second
	// ourRecoveryBound is our time limit; asynq's is asynqRecoveryBound.
	ourRecoveryBound   = 20 * time.Second
	asynqRecoveryBound = 90 * time.Second
)

// recovery is how long it took until the tasks of a killed worker began elsewhere.
type recovery struct {
	elapsed time.Duration
	// late says that some of them had not begun within the limit.
	late bool
}

func (b *bench) recoveries(ctx context.Context, all []contender, _ int, r *results) error {
	c, ok := pick(all, true)
	if !ok {
		return nil
	}
	return b.recoveryOf(ctx, c, r)
}

func (b *bench) recoveryOf(ctx context.Context, c contender, r *results) error {
	if err := b.flush(ctx); err != nil {
		return err
	}
	got, err := b.recovery(ctx, c.ours)
	if err != nil {
		return fmt.Errorf("recovery of %s: %w", c.name, err)
	}
	r.of[c.name].recovery = append(r.of[c.name].recovery, got)
	return nil
}

// recovery kills a process that holds tasks, while a worker of this process is idle.
func (b *bench) recovery(ctx context.Context, ours bool) (result recovery, err error) {
	name := queueName()
	q, err := openForRecovery(b.addr, name, ours)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, q.close()) }()
	if err := q.enqueue(ctx, newJobs(0, heldTasks)); err != nil {
		return result, err
	}
	w, err := startWorker(ctx, b.addr, name, ours)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, w.kill()) }()
	if err := w.holdsAll(ctx); err != nil {
		return result, err
	}
	l := newLedger(heldTasks, noFailures)
	stop, err := q.start(ctx, func(_ context.Context, batch []int) []error { return l.handle(batch) })
	if err != nil {
		return result, fmt.Errorf("start: %w", err)
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := pause.OrCause(ctx, settleTime); err != nil {
		return result, err
	}
	if n := l.missing.Load(); n != heldTasks {
		return result, fmt.Errorf("%d tasks ran elsewhere while their worker lived", heldTasks-n)
	}
	start := time.Now()
	if err := w.kill(); err != nil {
		return result, err
	}
	bound := time.NewTimer(asynqRecoveryBound)
	if ours {
		bound.Reset(ourRecoveryBound)
	}
	defer bound.Stop()
	select {
	case <-l.done:
	case <-bound.C:
		result.late = true
	case <-ctx.Done():
		return result, context.Cause(ctx)
	}
	result.elapsed = time.Since(start)
	return result, nil
}

// openForRecovery opens the same queue in both processes.
func openForRecovery(addr, name string, ours bool) (queueClient, error) {
	if ours {
		return openOurs(addr, name, queue.Config{Lease: recoveryLease}, queue.RunConfig{
			Batch: heldTasks, Workers: concurrency,
			// A killed process does not drain, and a hanging one should not take long to.
			Drain: time.Second,
		})
	}
	return openAsynqForRecovery(addr, name), nil
}

// worker is another process of this binary.
type worker struct {
	cmd   *exec.Cmd
	said  *awaited
	ended chan struct{}
}

func startWorker(ctx context.Context, addr, name string, ours bool) (*worker, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), binary, workerCommand,
		"-addr", addr, "-queue", name, fmt.Sprintf("-ours=%t", ours))
	w := &worker{cmd: cmd, said: awaitLine(holdsAllLine), ended: make(chan struct{})}
	cmd.Stdout = w.said
	cmd.Stderr = os.Stderr
	if err := child.Start(cmd, func(error) { close(w.ended) }); err != nil {
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	return w, nil
}

// holdsAll waits until the worker has all tasks.
func (w *worker) holdsAll(ctx context.Context) error {
	timer := time.NewTimer(runner.Patience)
	defer timer.Stop()
	select {
	case <-w.said.seen:
		return nil
	case <-w.ended:
		return errors.New("the worker ended early")
	case <-timer.C:
		return fmt.Errorf("the worker does not hold %d tasks after %s", heldTasks, runner.Patience)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// kill ends the worker by its process id, with SIGKILL, and returns when it has
// ended. It may be repeated.
func (w *worker) kill() error {
	if err := w.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill the worker: %w", err)
	}
	<-w.ended
	return nil
}
