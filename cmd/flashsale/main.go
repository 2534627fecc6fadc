// Command flashsale sells a fixed stock to a crowd of buyers that arrives within one second.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"flashsale/cmd/flashsale/config"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// gcPercent lets the heap grow to four times the live data before a collection. The
// live data is small compared with each request's garbage: with the default of 100 the
// collector took a tenth of the processor time of a sale.
const gcPercent = 300

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	// Durations in the log are numbers of milliseconds; their fields end in _ms.
	zerolog.DurationFieldUnit, zerolog.DurationFieldFormat = time.Millisecond, zerolog.DurationFormatFloat
	ctx, stop := signal.NotifyContext(context.Background(), stopSignals()...)
	// After the first signal the handler is removed, so that a second one ends the process at
	// once. A closed terminal may send SIGHUP twice.
	context.AfterFunc(ctx, func() {
		signal.Ignore(syscall.SIGHUP)
		stop()
	})
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// stopSignals are the signals that stop the program in order. A terminal that is closed sends
// SIGHUP; under nohup it is ignored and stays so.
func stopSignals() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

func run(ctx context.Context, args []string) int {
	root, helpErr := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = helpErr()
	}
	var usage config.UsageError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &usage):
		report(err)
		return exitUsage
	default:
		report(err)
		return exitFailed
	}
}

// reportLimit bounds the wait for whatever reads standard error, which may have stopped.
const reportLimit = time.Second

// report prints an error.
func report(err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		fmt.Fprintf(os.Stderr, "flashsale: %v\n", err)
	}()
	select {
	case <-done:
	case <-time.After(reportLimit):
	}
}
