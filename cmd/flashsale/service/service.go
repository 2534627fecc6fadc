// Package service builds one process of the service from its parts, runs it and drains it. It
// is the only package that imports all packages of the shop.
package service

import (
	"context"
	"errors"
	"io"
	"net"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"flashsale/catalog"
	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/handler/auth"
	"flashsale/internal/tracing"
	"flashsale/order/admission"
	"flashsale/order/checkout"
	"flashsale/order/figures"
	"flashsale/order/store"
)

// Role is whether a process is an API, a worker or both.
type Role struct {
	command     string
	api, worker bool
}

// The roles of the commands that start them.
var (
	Serve  = Role{command: "serve", api: true, worker: true}
	API    = Role{command: "api", api: true}
	Worker = Role{command: "worker", worker: true}
)

// Run builds the process, runs it until ctx ends, and drains it. out gets what the start
// prints.
func Run(ctx context.Context, s *config.Settings, r Role, b Build, out io.Writer) error {
	// The reader of the log may end first, as when a terminal is closed; the process drains all the same.
	signal.Ignore(syscall.SIGPIPE)
	registry := prometheus.NewRegistry()
	log, flush := newLogger(s, registry)
	defer flush()
	defer captureStandardLog(log)()
	life, err := build(ctx, &env{
		settings: s, role: r, build: b, log: log, out: out, registry: registry, now: time.Now,
	})
	if err != nil && ctx.Err() != nil {
		log.Info().AnErr("reason", err).Msg("stopped before it was ready")
		return nil
	}
	if err != nil {
		return err
	}
	err = life.run(ctx)
	log.Info().Msg("stopped")
	return err
}

// build creates the process. After an error, everything that was opened is closed.
func build(ctx context.Context, e *env) (*lifecycle, error) {
	var b builder
	err := b.build(ctx, e)
	life := &lifecycle{
		parts: slices.Concat(b.base, b.ops, b.rest),
		// Half of the time for the requests, half for the worker.
		drain: e.settings.Drain / 2,
	}
	if err != nil {
		return nil, errors.Join(err, life.close(ctx))
	}
	return life, nil
}

// builder collects the parts of a process. The operator's server shows all that the
// others do, so it is made last; it starts after the base and stops before it.
type builder struct {
	base, ops, rest parts
	banner          banner
}

func (b *builder) build(ctx context.Context, e *env) error {
	s, r := e.settings, e.role
	for _, name := range s.UnknownVariables {
		e.log.Warn().Str("variable", name).Msg("unknown environment variable ignored; flashsale --help lists the settings")
	}
	if r.command == "serve" && e.embedded() {
		if err := lockFiles(s, &b.base); err != nil {
			return err
		}
	}
	dev, err := checkKeys(s, r)
	if err != nil {
		return err
	}
	if _, err := s.MockPayments(dev != nil); err != nil {
		return err
	}
	if e.embedded() && !(r.api && r.worker) {
		return config.BadSetting("redis", s.Redis, "the embedded engine serves one process, and "+r.command+" is one of several",
			"set a Redis that all processes can reach, or run flashsale serve")
	}
	eng, err := openEngine(ctx, e, &b.base)
	if err != nil {
		return err
	}
	if err := b.addRoles(ctx, e, eng, dev); err != nil {
		return err
	}
	if dev != nil {
		b.banner.mode = developmentMode
		if b.banner.admin, err = dev.sign("admin", auth.RoleAdmin, adminTokenLife); err != nil {
			return err
		}
	}
	says, change := backend.Durability(ctx, eng.rdb, s.Redis)
	for _, c := range change {
		e.log.Warn().Msg(c.Says + "; fix: " + c.Fix)
	}
	b.banner.engine = says
	if says, change, err = backend.DatabaseDurability(ctx, eng.store); err != nil {
		return err
	}
	for _, c := range change {
		e.log.Warn().Msg(c.Says + "; fix: " + c.Fix)
	}
	b.banner.database = config.RedactURL(s.DB) + ": " + says
	b.banner.write(e.out)
	return nil
}

// shared is what the worker and the API of a process have in common.
type shared struct {
	*env
	eng       *engine
	mon       *monitoring
	writes    *admission.WriteProbe
	highWater *store.HighWater
	waiters   *checkout.Waiters // nil without an API
	chores    *leaders          // nil where there is nothing to lead
	tracer    *tracing.Tracer   // nil: traces are off
	counters  *figures.Counters // of the live figures
	mock      *mockPayments     // nil outside development mode
}

// newShared creates them.
func (b *builder) newShared(ctx context.Context, e *env, eng *engine, dev *development) (*shared, error) {
	sh := &shared{env: e, eng: eng, counters: newCounters()}
	var err error
	if sh.mon, err = newMonitoring(e, eng, &b.base); err != nil {
		return nil, err
	}
	if sh.writes, err = newWriteProbe(e, eng.store, &b.rest); err != nil {
		return nil, err
	}
	// Before anything else uses the database and Redis.
	if sh.highWater, err = newHighWater(ctx, e, eng, &b.rest); err != nil {
		return nil, err
	}
	if sh.mock, err = newMockPayments(ctx, e, eng, dev, &b.rest); err != nil {
		return nil, err
	}
	if e.role.worker || e.settings.ReconcileEvery != 0 {
		if sh.chores, err = newLeaders(e, eng.rdb, eng.clock.Now, &b.rest); err != nil {
			return nil, err
		}
	}
	if e.role.api {
		sh.waiters = checkout.NewWaiters()
	}
	if sh.tracer, err = newTracer(ctx, e, &b.rest); err != nil {
		return nil, err
	}
	return sh, nil
}

// addRoles adds the worker and the API of the role, and their health checks.
func (b *builder) addRoles(ctx context.Context, e *env, eng *engine, dev *development) error {
	r := e.role
	e.registry.MustRegister(e.build.metric(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	operators, err := listenOps(ctx, e)
	if err != nil {
		return err
	}
	sh, err := b.newShared(ctx, e, eng, dev)
	if err != nil {
		return err
	}
	settleProcessors(r, e.settings)
	var p *pulse
	if r.worker {
		p = newPulse(e, sh.mon.workers, &b.rest)
		if err := addWorker(sh, p, &b.rest); err != nil {
			return err
		}
	}
	h := &health{shared: sh, drain: newDrain(), pulse: p}
	var items *catalog.Catalog
	if r.api {
		var l net.Listener
		if items, l, err = addAPI(ctx, sh, h, dev, &b.rest); err != nil {
			return err
		}
		at := "http://" + reachable(l.Addr())
		b.banner.shop, b.banner.dashboard, b.banner.api, b.banner.docs = at+"/", at+"/admin", at+"/v1/items", at+"/docs"
		b.banner.payments = sh.mock.addTo(&b.rest, l.Addr())
	} else {
		if _, err := newFigures(sh, nil, figures.Sources{}, &b.rest); err != nil {
			return err
		}
		// Stopped first. With an API, its drain also reports that the process is not ready.
		b.rest.closing("readiness", func() error { h.drain.on.Store(true); return nil })
	}
	if operators != nil {
		b.banner.metrics = "http://" + reachable(operators.Addr()) + "/metrics"
		b.ops.add(serveOps(e, operators, h, sh.mon.monitor, items))
	}
	return nil
}
