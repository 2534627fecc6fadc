package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/handler/auth"
)

// servicePatience is longer than the lease of a worker that was killed, and than two of the
// reconciliations that repair what a fault has left.
const servicePatience = 2*time.Minute + 15*time.Second

// serviceContender is this repository's service: an API process and a worker process with their
// default settings, on a redis-server and SQLite. Both are killed.
func serviceContender(name, approach string, answer int) contender {
	return contender{name: name, approach: approach, answer: answer, ours: true, patience: servicePatience, prepare: prepareService}
}

func prepareService(ctx context.Context, s *rig) error {
	if err := s.startRedis(ctx); err != nil {
		return err
	}
	path := filepath.Join(s.dir, "orders.db")
	common := []string{"--db", "sqlite:" + path, "--data-dir", s.dir, "--redis", "redis://" + s.redis.Addr() + "/0", "--log-level", "warn"}
	migrate := exec.CommandContext(ctx, s.service, append([]string{"migrate", "up"}, common...)...)
	migrate.Env = append(os.Environ(), secret)
	if text, err := migrate.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate: %w\n%s", err, text)
	}
	s.addr = process.FreeAddr()
	s.programs = []program{
		{name: "api", path: s.service, addr: s.addr, args: append([]string{"api", "--addr", s.addr, "--ops-addr", process.FreeAddr()}, common...)},
		{name: "worker", path: s.service, args: append([]string{"worker", "--ops-addr", process.FreeAddr()}, common...)},
	}
	s.stock = serviceStock{s.addr}
	var err error
	s.db, err = openReader(path)
	return err
}

// secret is the setting of the key that signs the tokens.
const secret = "FLASHSALE_JWT_SECRET=" + load.Secret

// openReader opens a SQLite file read-only, while another process uses it.
func openReader(path string) (*sql.DB, error) {
	return sql.Open("sqlite3", "file:"+path+"?_query_only=true&_busy_timeout=10000")
}

// serviceStock is the service's stock, through its API.
type serviceStock struct{ addr string }

func (s serviceStock) put(ctx context.Context, item string, total int64) error {
	body, err := json.Marshal(map[string]any{
		"id": item, "name": item, "description": "", "price_minor": unitPrice, "currency": currency,
		"stock": total, "per_user_limit": perBuyer, "payment_window_seconds": 0,
	})
	if err != nil {
		return err
	}
	_, err = s.call(ctx, http.MethodPost, "/v1/admin/items", http.StatusCreated, body)
	return err
}

func (s serviceStock) left(ctx context.Context, item string) (int64, error) {
	text, err := s.call(ctx, http.MethodGet, "/v1/admin/items/"+item+"/ledger", http.StatusOK, nil)
	if err != nil {
		return 0, err
	}
	var ledger struct {
		Left *int64 `json:"left"`
	}
	if err := json.Unmarshal(text, &ledger); err != nil {
		return 0, err
	}
	if ledger.Left == nil {
		return 0, fmt.Errorf("the ledger has no field left: %s", text)
	}
	return *ledger.Left, nil
}

func (s serviceStock) call(ctx context.Context, method, path string, want int, body []byte) ([]byte, error) {
	token, err := auth.SignToken([]byte(load.Secret), "bench", auth.RoleAdmin, time.Hour, time.Now())
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.addr+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != want {
		err = fmt.Errorf("%s %s: %s %s", method, path, res.Status, text)
	}
	return text, errors.Join(err, res.Body.Close())
}
