package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"flashsale/bench/internal/history"
	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/bench/internal/world"
	"flashsale/handler/auth"
	"flashsale/internal/pause"
)

// rig is the environment of one measurement: a database with a history, a redis-server and the
// service's processes, in a folder of its own. The methods of meter use its world: createItem,
// send, buyOne, reopen, waitDrained.
type rig struct {
	*meter

	redis *redis.Client // nil: the embedded engine
}

// newRig starts a redis-server, migrates a database and fills it with a history.
// It starts no process of the service: see serve and work.
func (s *sizes) newRig(ctx context.Context, h history.History) (r *rig, err error) {
	dir, err := os.MkdirTemp(s.dir, "rig-")
	if err != nil {
		return nil, err
	}
	w := &world.World{Dir: dir, Binary: s.binary}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if err := w.StartRedis(ctx, s.o.fsync); err != nil {
		return nil, err
	}
	w.Common = []string{
		"--db", "sqlite:" + filepath.Join(dir, "bench.db"), "--data-dir", dir,
		"--redis", "redis://" + w.Redis.Addr + "/0", "--log-level", "warn",
	}
	if err := w.Once(ctx, w.Binary, append([]string{"migrate", "up"}, w.Common...)...); err != nil {
		return nil, err
	}
	if err := h.Write(ctx, filepath.Join(dir, "bench.db")); err != nil {
		return nil, fmt.Errorf("fill the database: %w", err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: w.Redis.Addr})
	return &rig{redis: rdb, meter: &meter{world: w, crowd: s.crowd, rdb: rdb, o: s.o, out: s.out}}, nil
}

// serve starts the API process, r.world.API, without a rate limit for buyers. settings are
// further flags of the service.
func (r *rig) serve(ctx context.Context, settings ...string) (err error) {
	r.world.API, err = r.world.Another(ctx, settings...)
	return err
}

// serveAlso starts n further API processes, r.world.Also.
func (r *rig) serveAlso(ctx context.Context, n int, settings ...string) error {
	for range n {
		p, err := r.world.Another(ctx, settings...)
		if err != nil {
			return err
		}
		r.world.Also = append(r.world.Also, p)
	}
	return nil
}

// work starts the worker process, r.world.Worker. settings are further flags of the
// service.
func (r *rig) work(ctx context.Context, settings ...string) (err error) {
	ops := process.FreeAddr()
	args := append(append([]string{"worker", "--ops-addr", ops}, settings...), r.world.Common...)
	if r.world.Worker, err = r.world.Launch(ctx, "worker", r.world.Binary, "", ops, args...); err != nil {
		return err
	}
	return workerReady(ctx, r.world.Worker)
}

// workerReady waits until a worker answers with its metrics.
func workerReady(ctx context.Context, w *process.Process) (err error) {
	for range 500 {
		if _, err = process.Get(ctx, "http://"+w.Ops+"/metrics"); err == nil {
			return nil
		}
		if err := pause.OrCause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s was not ready within 10 s: %w", w.Name, err)
}

// start starts the API process and the worker with their default settings.
func (r *rig) start(ctx context.Context) error {
	return errors.Join(r.serve(ctx), r.work(ctx))
}

// path is the path of the database.
func (r *rig) path() string { return filepath.Join(r.world.Dir, "bench.db") }

// open opens the database read-only, while the service uses it.
func (r *rig) open() (*sql.DB, error) {
	return sql.Open("sqlite3", "file:"+r.path()+"?_query_only=true&_busy_timeout=10000")
}

// warm loads sales into Redis through the service, several concurrently.
func (r *rig) warm(ctx context.Context, items []string, parallel int) error {
	token, err := auth.SignToken([]byte(load.Secret), "bench", auth.RoleAdmin, time.Hour, time.Now())
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, item := range items {
		g.Go(func() error { return r.warmOne(ctx, item, token) })
	}
	return g.Wait()
}

// warmOne repeats the request until the sale is loaded: a load may take longer than a request.
func (r *rig) warmOne(ctx context.Context, item, token string) error {
	began := time.Now()
	for {
		status, body, err := r.admin(ctx, http.MethodPost, "/v1/admin/items/"+url.PathEscape(item)+"/warm", token)
		if err != nil {
			return err
		}
		if status == http.StatusOK {
			return nil
		}
		if status != http.StatusServiceUnavailable || time.Since(began) > recoveryLimit {
			return fmt.Errorf("warm %s: %d %s", item, status, body)
		}
		if err := pause.OrCause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// admin sends a request without a body.
func (r *rig) admin(ctx context.Context, method, path, token string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+r.world.API.Addr+path, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, text, errors.Join(err, res.Body.Close())
}

// waitDrained is that of meter. With the embedded engine every order is committed when it is answered.
func (r *rig) waitDrained(ctx context.Context) (time.Duration, error) {
	if r.redis == nil {
		return 0, nil
	}
	return r.meter.waitDrained(ctx)
}

// close ends the processes by their ids and removes the folder.
func (r *rig) close() error {
	var err error
	if r.redis != nil {
		err = r.redis.Close()
	}
	return errors.Join(err, r.world.Close())
}

// fillLimit bounds the time for a backlog to grow or shrink.
const fillLimit = 15 * time.Minute

// rotation lets rigs take turns on one machine. While one is measured, the API processes and
// workers of the others are stopped with SIGSTOP: otherwise their background work would slow
// all of them down and the ratios would hide it.
type rotation struct {
	s    *sizes
	rigs []*rig
	next int64 // number of the next purchase
}

// resume continues all rigs. Call it before they are closed: a stopped process does not react
// to SIGTERM.
func (t *rotation) resume() error {
	var errs []error
	for _, r := range t.rigs {
		errs = append(errs, r.signal(syscall.SIGCONT))
	}
	return errors.Join(errs...)
}

// only continues one rig and stops the others.
func (t *rotation) only(r *rig) error {
	var errs []error
	for _, other := range t.rigs {
		if other != r {
			errs = append(errs, other.signal(syscall.SIGSTOP))
		}
	}
	return errors.Join(append(errs, r.signal(syscall.SIGCONT))...)
}

// fill buys until so many orders are queued.
func (t *rotation) fill(ctx context.Context, r *rig, p load.Purchases, n int) error {
	p.Async = true
	began := time.Now()
	for {
		queued, err := r.queued(ctx)
		if err != nil {
			return err
		}
		if queued >= int64(n) {
			return nil
		}
		if time.Since(began) > fillLimit {
			return fmt.Errorf("%d of %d orders queued after %v", queued, n, fillLimit)
		}
		p.First = t.next
		b, err := t.s.crowd.Buy(ctx, p, fillStep(n-int(queued), t.s.o.phase))
		if err != nil {
			return err
		}
		t.next = b.Next
		if b.Codes[http.StatusAccepted] == 0 {
			return fmt.Errorf("no order was accepted: %v", b.Codes)
		}
	}
}

// fillStep is how long to buy when n orders are missing. Few orders are a matter of
// milliseconds, and a whole second would add many times as many.
func fillStep(n int, phase time.Duration) time.Duration {
	const perSecond = 30_000 // about what two cores accept
	return min(time.Duration(n)*time.Second/perSecond, time.Second, phase)
}

// clear lets a worker empty the queue.
func (r *rig) clear(ctx context.Context) error {
	if err := r.work(ctx); err != nil {
		return err
	}
	_, err := r.waitDrained(ctx)
	return errors.Join(err, r.world.Worker.Stop())
}

// signal sends a signal to the API processes and the worker.
func (r *rig) signal(sig os.Signal) error {
	var errs []error
	for _, c := range append([]*process.Process{r.world.API, r.world.Worker}, r.world.Also...) {
		if c == nil || c.Gone() {
			continue
		}
		p, err := os.FindProcess(c.PID)
		if err == nil {
			err = p.Signal(sig)
		}
		if err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, fmt.Errorf("signal %s: %w", c.Name, err))
		}
	}
	return errors.Join(errs...)
}
