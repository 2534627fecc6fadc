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
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/handler/auth"
	"flashsale/internal/pause"
)

// rig is the environment of one measurement: a database with a history, a redis-server and the
// service's processes, in a folder of its own. The methods of meter use its world: createItem,
// send, buyOne, reopen, waitDrained.
type rig struct {
	*meter

	redis *redis.Client
}

// newRig starts a redis-server, migrates a database and fills it with a history.
// It starts no process of the service: see serve and work.
func (s *sizes) newRig(ctx context.Context, h history) (r *rig, err error) {
	dir, err := os.MkdirTemp(s.dir, "rig-")
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir, binary: s.binary}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if err := w.startRedis(ctx, s.o.fsync); err != nil {
		return nil, err
	}
	w.common = []string{
		"--db", "sqlite:" + filepath.Join(dir, "bench.db"), "--data-dir", dir,
		"--redis", "redis://" + w.redis.Addr + "/0", "--log-level", "warn",
	}
	if err := w.once(ctx, w.binary, append([]string{"migrate", "up"}, w.common...)...); err != nil {
		return nil, err
	}
	if err := h.write(ctx, filepath.Join(dir, "bench.db")); err != nil {
		return nil, fmt.Errorf("fill the database: %w", err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: w.redis.Addr})
	return &rig{redis: rdb, meter: &meter{world: w, crowd: s.crowd, rdb: rdb, o: s.o, out: s.out}}, nil
}

// serve starts the API process, r.world.api, without a rate limit for buyers. settings are
// further flags of the service.
func (r *rig) serve(ctx context.Context, settings ...string) (err error) {
	r.world.api, err = r.world.another(ctx, settings...)
	return err
}

// serveAlso starts n further API processes, r.world.also.
func (r *rig) serveAlso(ctx context.Context, n int, settings ...string) error {
	for range n {
		p, err := r.world.another(ctx, settings...)
		if err != nil {
			return err
		}
		r.world.also = append(r.world.also, p)
	}
	return nil
}

// work starts the worker process, r.world.worker. settings are further flags of the
// service.
func (r *rig) work(ctx context.Context, settings ...string) (err error) {
	ops := process.FreeAddr()
	args := append(append([]string{"worker", "--ops-addr", ops}, settings...), r.world.common...)
	if r.world.worker, err = r.world.start(ctx, "worker", r.world.binary, "", ops, args...); err != nil {
		return err
	}
	for range 500 {
		if _, err = process.Get(ctx, "http://"+ops+"/metrics"); err == nil {
			return nil
		}
		if err := pause.OrCause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("worker was not ready within 10 s: %w", err)
}

// start starts the API process and the worker with their default settings.
func (r *rig) start(ctx context.Context) error {
	return errors.Join(r.serve(ctx), r.work(ctx))
}

// path is the path of the database.
func (r *rig) path() string { return filepath.Join(r.world.dir, "bench.db") }

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
	req, err := http.NewRequestWithContext(ctx, method, "http://"+r.world.api.Addr+path, http.NoBody)
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

// close ends the processes by their ids and removes the folder.
func (r *rig) close() error {
	return errors.Join(r.redis.Close(), r.world.close())
}
