package handler

import (
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// NewOps returns the routes of the operator's address: /metrics, /debug/pprof,
// /healthz and /readyz. It has no authentication, so it belongs on an address that
// only operators reach.
func NewOps(g prometheus.Gatherer, c OpsConfig) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /healthz", opsHealth(&c))
	mux.HandleFunc("GET /readyz", opsReady(&readiness{parts: c.Ready, workers: c.Workers, now: time.Now, log: c.Log}))
	return mux
}
