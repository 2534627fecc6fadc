package service

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/catalog"
	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/handler"
	"flashsale/handler/auth"
	"flashsale/handler/server"
	"flashsale/order/feed"
	"flashsale/order/payments"
	"flashsale/order/privacy"
	"flashsale/order/timeline"
	"flashsale/order/worker"
)

// addAPI adds what sells, and the server that buyers and admins reach it by, which
// listens already.
func addAPI(ctx context.Context, sh *shared, ready *health, dev *development, ps *parts) (*catalog.Catalog, net.Listener, error) {
	e, eng, s := sh.env, sh.eng, sh.settings
	sl, err := newSelling(ctx, sh, ps)
	if err != nil {
		return nil, nil, err
	}
	reconciler := newReconciler(sh, sl, ps)
	verifier, err := s.OpenVerifier(context.WithoutCancel(ctx), dev.secret(), e.reporter("auth"))
	if err != nil {
		return nil, nil, err
	}
	payments := &payments.Service{Store: eng.store}
	addRefundMetric(ctx, e, payments)
	webhooks, err := newWebhookAdmin(s, eng.store, sh.mock)
	if err != nil {
		return nil, nil, err
	}
	backlog := worker.NewBacklog(eng.store, sl.service.Releaser, sl.service.ChangeNotifier, append(eng.orderQueues(), eng.otherQueues()...)...)
	figures, err := newFigures(sh, sl.locks, figureSources(sh, sl, backlog), ps)
	if err != nil {
		return nil, nil, err
	}
	feed := feed.NewFeed(feed.Config{
		Store: eng.store, Redis: eng.rdb, Orders: sl.service, MaxStreams: maxStreams(e), OnError: e.reporter("order events"),
	})
	c := handler.Config{
		Orders: sl.service, Items: sl.items, Sales: sl.sales, Ledgers: reconciler, Payments: payments,
		Buyers:    &privacy.Service{Store: eng.store, Tasks: eng.tasks(), Queued: sl.queued, Renamer: sl.stock},
		Timelines: &timeline.Service{Store: eng.store, Orders: timelineQueues(eng.orderQueues()), Expiries: timelineQueues(eng.otherQueues())},
		Audit:     eng.store, Verifier: verifier, Tasks: backlog, Reconciler: reconciler, Webhooks: webhooks,
		System: newSystem(sh),
		Ready:  append(ready.checks(), catalogCheck(sl.items)), Workers: sh.mon.monitor, Admission: newAdmission(sh, ps),
		Limits: handler.Limits{
			RateBuyer: s.RateBuyer, RateAddress: s.RateAddress, TrustedProxies: s.TrustedProxies, InFlight: int64(s.InFlight),
		},
		Streams: handler.Streams{Feed: feed, Figures: figures}, Purchases: sh.counters,
		CursorKey: cursorKey(s, dev), LoginURL: s.LoginURL, Log: e.log, Registerer: e.registry, Now: e.now, ItemNow: eng.clock.ItemNow,
		Process: sh.waiters.Origin(), Tracer: sh.tracer, Charge: sh.mock.charge(),
	}
	if dev != nil {
		c.DevTokens = func(sub, role string, ttl time.Duration) (string, error) {
			return dev.sign(sub, auth.Role(role), ttl)
		}
	}
	h, err := handler.New(c)
	if err != nil {
		return nil, nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Addr)
	if err != nil {
		fix := "choose a free address"
		if s.Addr == s.OpsAddr {
			fix = "choose another address than that of ops-addr"
		}
		return nil, nil, config.FailedSetting("addr", s.Addr, err.Error(), fix)
	}
	// The server does not wait for streams, because it has handed over their connections. The
	// wait for their last bytes comes after its drain, so that both share the time.
	ps.add(part{name: "order streams", stop: feed.Wait})
	ps.add(part{name: "figures streams", stop: figures.Wait})
	ps.add(ready.drain.part("api", server.StrictListener(l), e.server(h)))
	// Stopped first, so that clients of streams reconnect to another process.
	ps.add(part{name: "order events", run: feed.Run, stop: feed.Close})
	ps.add(part{name: "watchers", stop: figures.Close})
	if e.role.command == "serve" && s.Demo {
		err = openDemo(ctx, eng.store, sl.sales)
	}
	return sl.items, l, err
}

// timelineQueues names the queues for the timelines of orders.
func timelineQueues(named []worker.NamedQueue) (queues []timeline.Queue) {
	for _, q := range named {
		queues = append(queues, timeline.Queue{Name: q.Name, Tasks: q.Queue})
	}
	return queues
}

// maxStreams returns the maximum number of event streams of this process, and registers it as a
// metric.
func maxStreams(e *env) int {
	n := e.settings.MaxStreams
	if files, known := backend.FileLimit(); known && uint64(n) > backend.StreamFiles(files) {
		n = int(backend.StreamFiles(files))
		e.log.Warn().Int("max_streams", n).Int("setting", e.settings.MaxStreams).Uint64("open_files", files).
			Msg("max-streams lowered to half of the open-file limit; raise the limit (ulimit -n, LimitNOFILE)")
	}
	limit := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "flashsale_event_streams_limit", Help: "Maximum number of open event streams of this process.",
	})
	limit.Set(float64(n))
	e.registry.MustRegister(limit)
	return n
}

// cursorKey authenticates the cursors of lists. All API processes of a shop have the same
// secret, and so the same key. With only public keys there is no secret from which to derive
// it; the handler's fixed key then only detects damage.
func cursorKey(s *config.Settings, dev *development) []byte {
	secret := dev.secret()
	if s.JWTSecret != "" {
		secret = []byte(s.JWTSecret)
	}
	if len(secret) == 0 {
		return nil
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("flashsale list cursor"))
	return mac.Sum(nil)
}
