// Package ops is the operators' address: metrics, profiles, and whether the process is alive and
// ready (ops.go). The probes of the parts that a process needs (readiness.go) also answer /readyz
// of the public address.
package ops

import (
	"context"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
)

// Config configures the operators' address. The zero value is valid.
type Config struct {
	// Ready are the checks of /readyz. Default none: always ready.
	Ready []Check
	// Workers is shown by /readyz. Default nil: workers are not shown.
	Workers workerStatus
	// Alive returns nil while /healthz answers 200; its error is logged, but not shown. It must
	// not depend on other services, because a restart of this process would not help them.
	// Default nil: the process is alive if it answers.
	Alive func() error
	// Registerer receives the metric flashsale_ready, which has the results of the checks that
	// /readyz makes. A scrape waits for them, at most a second. Default nil: no metric.
	Registerer prometheus.Registerer
	// Log receives the parts that are not ready. Default: nothing is logged.
	Log zerolog.Logger
}

// readyz answers GET /readyz on the operators' address.
func readyz(r *Readiness) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		state := r.State(context.WithoutCancel(req.Context()))
		status, text := http.StatusOK, `"status":"ok"}`
		if !state.Ready() {
			status, text = http.StatusServiceUnavailable, `"status":"unavailable"}`
		}
		writeJSON(w, status, append(state.AppendMembers([]byte{'{'}), text...))
	}
}

// healthz answers GET /healthz on the operators' address.
func healthz(c *Config) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if c.Alive != nil {
			if err := c.Alive(); err != nil {
				c.Log.Error().Err(err).Msg("not alive")
				writeJSON(w, http.StatusServiceUnavailable, []byte(`{"status":"unavailable"}`))
				return
			}
		}
		writeJSON(w, http.StatusOK, []byte(`{"status":"ok"}`))
	}
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"], h["Cache-Control"] = []string{"application/json"}, []string{"no-store"}
	w.WriteHeader(status)
	if _, err := w.Write(append(body, '\n')); err != nil {
		return // the client has disconnected
	}
}

// New returns the routes of the operators' address: /metrics, /debug/pprof, /healthz and
// /readyz. They have no authentication, so only operators may be able to reach the address.
func New(g prometheus.Gatherer, c Config) http.Handler {
	ready := NewReadiness(c.Ready, c.Workers, time.Now, c.Log)
	if c.Registerer != nil {
		c.Registerer.MustRegister(readyCollector{ready})
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /healthz", healthz(&c))
	mux.HandleFunc("GET /readyz", readyz(ready))
	return mux
}
