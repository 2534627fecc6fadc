// Command loadtest plays the crowd of a flash sale and judges the result. It
// opens a sale, lets many buyers arrive as a burst, a ramp or a steady stream,
// and then compares what the service answered with what its database holds.
//
// The load is open loop: each request has an instant at which it is due, whatever the
// outcome of earlier requests, and its latency counts from that instant. A service that
// falls behind cannot slow the crowd down and look fast.
//
// Without options it builds and starts the service itself, as one process with a
// fresh data directory. With --split it starts the service as it is deployed,
// redis-server, two APIs and two workers, and kills an API and a worker while the
// crowd buys. With --target it uses a service that runs. It ends with a line that
// begins with PASS or FAIL. Exit code 0: passed; 1: failed; 2: wrong usage.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the program immediately, and the kernel then ends the service.
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
