package service

import (
	"context"
	"errors"
	"net"
	"time"

	"flashsale/catalog"
	"flashsale/cmd/flashsale/config"
	"flashsale/handler/ops"
	"flashsale/order/worker"
)

// health checks this process.
type health struct {
	*shared
	drain *drain
	pulse *pulse // nil without a worker
}

func (h *health) checks() []ops.Check {
	return []ops.Check{
		{Name: "draining", Probe: func(context.Context) error { return h.drain.check() }},
		{Name: "redis", Probe: func(ctx context.Context) error { return h.eng.rdb.Ping(ctx).Err() }},
		{Name: "database", Probe: h.databaseReady},
		{Name: "database", Probe: h.salesStopped, Degrades: "older than Redis for some items; their sales are stopped until flashsale recover"},
	}
}

// databaseReady checks whether the database accepts writes, and whether it is older than Redis
// for every item, so that nothing can be sold.
func (h *health) databaseReady(ctx context.Context) error {
	err := h.canWrite(ctx)
	if h.highWater.AllStopped() {
		err = errors.Join(err, h.highWater.Err())
	}
	return err
}

// salesStopped fails while the database is older than Redis for some items. The other sales
// continue, so the process stays ready.
func (h *health) salesStopped(context.Context) error {
	if h.highWater.AllStopped() {
		return nil // databaseReady reports it
	}
	return h.highWater.Err()
}

// canWrite checks whether the database accepts writes. A worker's recent commit shows it, which
// saves a write.
func (h *health) canWrite(ctx context.Context) error {
	if h.pulse != nil {
		if at := h.pulse.committed.Load(); at != nil && h.now().Sub(*at) < commitTrust {
			return nil
		}
	}
	return h.writes.Check(ctx)
}

// listenOps listens on the operators' address, or returns nil if there is none.
func listenOps(ctx context.Context, e *env) (net.Listener, error) {
	if e.settings.OpsAddr == "" {
		return nil, nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", e.settings.OpsAddr)
	if err != nil {
		return nil, config.FailedSetting("ops-addr", e.settings.OpsAddr, err.Error(), "choose a free address, or off")
	}
	if at, ok := l.Addr().(*net.TCPAddr); !ok || !at.IP.IsLoopback() {
		e.log.Warn().Msgf("/metrics and /debug/pprof are served without authentication on %s, which is reachable from other machines: "+
			"restrict access to it with a firewall or network policy, or set --ops-addr to a loopback address", l.Addr())
	}
	return l, nil
}

// serveOps returns the part that serves operators. items is nil without an API.
func serveOps(e *env, l net.Listener, h *health, monitor *worker.Monitor, items *catalog.Catalog) part {
	c := ops.Config{Log: e.log, Ready: h.checks(), Registerer: e.registry}
	if e.role.api {
		c.Workers = monitor
		c.Ready = append(c.Ready, catalogCheck(items))
	}
	if p := h.pulse; p != nil {
		c.Ready = append(c.Ready, ops.Check{Name: "worker", Probe: func(context.Context) error { return p.ready() }})
		c.Alive = p.alive
	}
	srv := e.server(ops.New(e.registry, c))
	// A CPU profile takes as long as the request asks.
	srv.WriteTimeout = 2 * time.Minute
	// It closes immediately: losing a scrape or a profile at the end does not matter.
	return part{name: "ops", run: serving(srv, l, func() {}), stop: func(context.Context) error { return srv.Close() }}
}
