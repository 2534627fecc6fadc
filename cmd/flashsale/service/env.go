package service

import (
	"io"
	"net/http"
	"os"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"flashsale/cmd/flashsale/config"
	"flashsale/handler/server"
	"flashsale/internal/requestid"
)

// env is what every part of a process needs.
type env struct {
	settings *config.Settings
	role     Role
	build    Build
	log      zerolog.Logger
	out      io.Writer // for the output of the start
	registry *prometheus.Registry
	now      func() time.Time // this host's clock
	// spans receives the spans instead of a collector; only tests set it.
	spans sdktrace.SpanExporter
}

// embedded reports whether Redis runs in this process.
func (e *env) embedded() bool { return e.settings.Redis == config.EmbeddedRedis }

// reporter returns a function that logs errors of background work; see failures.
func (e *env) reporter(component string) func(error) {
	return e.reporterOf(component, func(error) string { return component + " failed, retrying" })
}

// reporterOf is a reporter whose messages depend on the error.
func (e *env) reporterOf(component string, message func(error) string) func(error) {
	return (&failures{log: e.log, component: component, message: message}).report
}

// withOrders adds the orders that an error is about to a log line.
func withOrders(l *zerolog.Event, err error) *zerolog.Event {
	orders, total := requestid.Of(err)
	switch len(orders) {
	case 0:
		return l
	case 1:
		return l.Str("order_id", orders[0].OrderID).Str("request_id", orders[0].RequestID)
	}
	ids, requests := make([]string, len(orders)), make([]string, len(orders))
	for i, o := range orders {
		ids[i], requests[i] = o.OrderID, o.RequestID
	}
	return l.Int("orders", total).Strs("order_ids", ids).Strs("request_ids", requests)
}

// server returns a server that uses the process's log.
func (e *env) server(h http.Handler) *http.Server {
	srv := server.New(h)
	srv.ErrorLog = server.ErrorLog(e.log)
	return srv
}

// settleProcessors limits a process that only writes to SQLite to one processor. It has a
// single writer, and the scheduler of an idle second processor took a sixth of its processor
// time. GOMAXPROCS overrides it.
func settleProcessors(r Role, s *config.Settings) {
	if r.worker && !r.api && !s.Postgres() && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
}
