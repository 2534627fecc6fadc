package service

import (
	"context"
	"fmt"
	"net"
	"time"

	"flashsale/catalog"
	"flashsale/cmd/flashsale/config"
	"flashsale/handler"
	"flashsale/order"
)

// listenOps takes the operator's address; nil where there is none.
func listenOps(ctx context.Context, e *env) (net.Listener, error) {
	if e.settings.OpsAddr == "" {
		return nil, nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", e.settings.OpsAddr)
	if err != nil {
		return nil, config.FailedSetting("ops-addr", e.settings.OpsAddr, err.Error(), "choose a free address, or none")
	}
	fmt.Fprintf(e.out, "metrics   http://%s/metrics\n", l.Addr())
	if at, ok := l.Addr().(*net.TCPAddr); !ok || !at.IP.IsLoopback() {
		e.log.Warn().Msgf("/metrics and /debug/pprof are served without authentication on %s, which is reachable from other machines: "+
			"restrict access to it with a firewall or network policy, or set --ops-addr to a loopback address", l.Addr())
	}
	return l, nil
}

// serveOps returns the part that shows operators this process. items is nil without an API.
func serveOps(e *env, l net.Listener, h *health, monitor *order.Monitor, items *catalog.Catalog) part {
	c := handler.OpsConfig{Log: e.log, Ready: h.checks()}
	if e.role.api {
		c.Workers = monitor
		c.Ready = append(c.Ready, catalogCheck(items))
	}
	if p := h.pulse; p != nil {
		c.Ready = append(c.Ready, handler.Check{Name: "worker", Probe: func(context.Context) error { return p.ready() }})
		c.Alive = p.alive
	}
	srv := e.server(handler.NewOps(e.registry, c))
	// A CPU profile streams for as long as was asked.
	srv.WriteTimeout = 2 * time.Minute
	// It stops without ado: a scrape or a profile cut off at the end is no loss.
	return part{name: "ops", run: serving(srv, l, func() {}), stop: func(context.Context) error { return srv.Close() }}
}
