// Command fake stands in for the service: it takes the same addresses, becomes
// ready, and misbehaves on request.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() { os.Exit(run()) }

func run() int {
	command := "none"
	args := os.Args[1:]
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("fake", flag.ContinueOnError)
	addr := flags.String("addr", "", "address of the API")
	ops := flags.String("ops-addr", "", "address of the metrics")
	exit := flags.Int("exit", -1, "end at once with this code")
	probes := flags.Int64("ready-after", 1, "the first probe that is answered with 200")
	stubborn := flags.Bool("stubborn", false, "ignore SIGTERM")
	lines := flags.Int("lines", 0, "lines to print first")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	for i := range *lines {
		fmt.Println("line", i)
	}
	fmt.Println("command", command, "FLASHSALE_SEEN="+os.Getenv("FLASHSALE_SEEN"), "FLASHSALE_SET="+os.Getenv("FLASHSALE_SET"))
	if *exit >= 0 {
		fmt.Fprintln(os.Stderr, "cannot start: the reason")
		return *exit
	}
	return serve(*addr, *ops, *probes, *stubborn)
}

// serve answers until SIGTERM, which a stubborn process does not heed.
func serve(addr, ops string, readyAfter int64, stubborn bool) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var seen atomic.Int64
	answer := func(w http.ResponseWriter, _ *http.Request) {
		if n := seen.Add(1); n < readyAfter {
			http.Error(w, "probe "+strconv.FormatInt(n, 10), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok", os.Getpid())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", answer)
	mux.HandleFunc("/metrics", answer)

	failed := make(chan error, 2)
	for _, a := range []string{addr, ops} {
		if a == "" {
			continue
		}
		srv := &http.Server{Addr: a, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
		go func() { failed <- srv.ListenAndServe() }()
	}
	for {
		select {
		case err := <-failed:
			if !errors.Is(err, http.ErrServerClosed) {
				fmt.Fprintln(os.Stderr, err)
			}
			return 1
		case <-ctx.Done():
			if !stubborn {
				fmt.Println("stopped by request")
				return 0
			}
			fmt.Println("request ignored")
			ctx = context.Background()
		}
	}
}
