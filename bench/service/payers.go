package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/bench/internal/process"
	"flashsale/bench/internal/targets"
	"flashsale/internal/testing/postgresserver"
	"flashsale/migrations"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/store"
	"flashsale/order/worker"
	"flashsale/queue"
)

const (
	// payersShare is the part of the order commits that has to remain with payers.
	payersShare = 0.7
	// payersRate is how many payments a second are recorded meanwhile.
	payersRate = 8000
	// payerCount is how many payers there are, each with one payment under way.
	payerCount = 256
	// payersRounds is how many pairs of phases are measured; medians are printed.
	payersRounds = 3
	// payersPhase is the length of one phase.
	payersPhase = 3 * time.Second
	// payersBatch and payersWorkers are a worker process's defaults.
	payersBatch, payersWorkers = 256, 2
	// payersItems is over how many items the orders are spread.
	payersItems = 8
)

// shop is a database with the committing half of the service.
type shop struct {
	server  *postgresserver.Server // nil on SQLite
	stores  []*store.Store
	service *checkout.Service
	worker  *worker.Fulfiller
	next    atomic.Int64 // the number of the next order

	mu     sync.Mutex
	unpaid []string // committed orders without a payment under way
}

// measurePayers measures how fast batches of orders are committed, with payers and without
// them, and how fast the payers are: in one process, as serve is, and in two, an API that takes the
// payments and a worker. It measures only the database, without Redis and HTTP.
func measurePayers(ctx context.Context, s *sizes) error {
	one := func(name string, processes int) (err error) {
		dir, err := os.MkdirTemp("", "bench-payers-")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		return s.payers(ctx, name, &shop{}, "sqlite:"+filepath.Join(dir, "bench.db"), processes)
	}
	return errors.Join(one("payers", 1), one("payers_split", 2))
}

// measurePayersPostgres is measurePayers on a Postgres that it starts, with a database for each.
func measurePayersPostgres(ctx context.Context, s *sizes) (err error) {
	if err := postgresserver.Missing(); err != nil {
		return fmt.Errorf("%w; `make deps-test` installs Postgres", err)
	}
	server, err := startPostgres(ctx, s.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	one := func(name string, processes int) error {
		err := server.Do(ctx, postgresserver.Superuser, func(db *sql.DB) error {
			_, err := db.ExecContext(ctx, "CREATE DATABASE "+name)
			return err
		})
		if err != nil {
			return err
		}
		return s.payers(ctx, name, &shop{server: server}, server.URL(name), processes)
	}
	return errors.Join(one("payers_postgres", 1), one("payers_postgres_split", 2))
}

// payers opens the shop for one or two processes and measures it. The second one is a second Store on the same
// database: it has a writer and connections of its own, as another process has.
func (s *sizes) payers(ctx context.Context, name string, p *shop, url string, processes int) (err error) {
	out := s.out
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.open(ctx, url, processes); err != nil {
		return err
	}
	var alone, beside, paid, slow []float64
	for range payersRounds {
		quiet, err := p.phase(ctx, 0)
		if err != nil {
			return err
		}
		busy, err := p.phase(ctx, payerCount)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-13s %6.0f orders/s without payers, batch p90 %v, %s; beside %d payers %6.0f orders/s, batch p90 %v, %6.0f payments/s, payment p99 %v, %s\n",
			name, quiet.orders, quantile(quiet.batches, 90), quiet.cores, payerCount, busy.orders, quantile(busy.batches, 90), busy.payments, quantile(busy.pays, 99), busy.cores)
		alone, beside, paid = append(alone, quiet.orders), append(beside, busy.orders), append(paid, busy.payments)
		slow = append(slow, float64(quantile(busy.batches, 90).Microseconds())/1000)
	}
	targets.AtLeast(out, name+"_orders/alone", median(beside)/median(alone), payersShare)
	targets.AtLeast(out, name+"_payments_per_s", median(paid), payersRate)
	fmt.Fprintf(out, "%-13s batch p90 beside them %.1f ms\n", name, median(slow))
	return nil
}

// open makes a few items on sale in an empty database, and opens it for one process or two. Close the
// shop after an error, too.
func (s *shop) open(ctx context.Context, url string, processes int) error {
	for n := range processes {
		one, err := store.Open(ctx, url)
		if err != nil {
			return err
		}
		s.stores = append(s.stores, one)
		if n > 0 {
			continue
		}
		if err := fillShop(ctx, one); err != nil {
			return err
		}
	}
	s.worker = worker.NewFulfiller(s.stores[0], nil, nil, func(error) {})
	s.service = &checkout.Service{Config: checkout.Config{Store: s.stores[processes-1], OnError: func(error) {}}}
	return nil
}

func (s *shop) close() error {
	var errs []error
	for _, one := range s.stores {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

func fillShop(ctx context.Context, store *store.Store) error {
	db, err := store.Writer().DB()
	if err != nil {
		return err
	}
	dialect := "sqlite"
	if store.Postgres() {
		dialect = "postgres"
	}
	m, err := migrations.New(db, dialect)
	if err != nil {
		return err
	}
	if _, err := m.Up(ctx); err != nil {
		return err
	}
	for i := range payersItems {
		_, err := store.InsertItem(ctx, order.NewItem{
			ID: "item-" + strconv.Itoa(i), Name: "Thing", PriceMinor: 4900, Currency: "EUR", Stock: stock, PerUserLimit: 1,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// phaseSeen is the result of one phase.
type phaseSeen struct {
	orders, payments float64 // a second
	batches, pays    []time.Duration
	cores            cores
}

// cores is how many processors this program, which contains the service's processes, and the
// server of Postgres used on average.
type cores struct{ own, postgres float64 }

func (c cores) String() string {
	return fmt.Sprintf("%.2f cores and %.2f of Postgres", c.own, c.postgres)
}

// spent is the processor time so far.
func (s *shop) spent() (own, postgres time.Duration, err error) {
	own = process.CPUOf(os.Getpid())
	if s.server == nil {
		return own, 0, nil
	}
	pids, err := s.server.Pids()
	return own, process.CPUOf(pids...), err
}

// phase commits orders for a time, concurrently with as many payers.
func (s *shop) phase(ctx context.Context, payers int) (*phaseSeen, error) {
	ctx, cancel := context.WithTimeout(ctx, payersPhase)
	defer cancel()
	var mu sync.Mutex
	var failed error
	seen, committed := &phaseSeen{}, 0
	note := func(add func(), err error) {
		mu.Lock()
		defer mu.Unlock()
		add()
		failed = errors.Join(failed, err)
	}
	ready := s.unpaid
	s.unpaid = nil
	var next atomic.Int64
	var all sync.WaitGroup
	own, postgres, err := s.spent()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	for range payersWorkers {
		all.Go(func() {
			took, err := s.work(ctx)
			note(func() { committed += len(took) * payersBatch; seen.batches = append(seen.batches, took...) }, err)
		})
	}
	for range payers {
		all.Go(func() {
			took, err := s.payAll(ctx, ready, &next)
			note(func() { seen.pays = append(seen.pays, took...) }, err)
		})
	}
	all.Wait()
	took := time.Since(began).Seconds()
	ownAfter, postgresAfter, err := s.spent()
	if err := errors.Join(failed, err); err != nil {
		return nil, err
	}
	if payers > 0 && int(next.Load()) >= len(ready) {
		return nil, fmt.Errorf("the payers ran out of orders after %d", len(ready))
	}
	s.unpaid = append(s.unpaid, ready[min(int(next.Load()), len(ready)):]...)
	seen.cores = cores{(ownAfter - own).Seconds() / took, (postgresAfter - postgres).Seconds() / took}
	seen.orders, seen.payments = float64(committed)/took, float64(len(seen.pays))/took
	slices.Sort(seen.batches)
	slices.Sort(seen.pays)
	return seen, nil
}

// work commits batches until ctx ends, and returns how long each took.
func (s *shop) work(ctx context.Context) (took []time.Duration, err error) {
	for ctx.Err() == nil {
		batch := make([]queue.Leased, payersBatch)
		for i := range batch {
			n := s.next.Add(1)
			batch[i] = queue.Leased{ID: fmt.Sprintf("01990000-0000-7000-8000-%012d", n), Payload: fmt.Appendf(nil,
				"2\titem-%d\tbuyer-%d\t1\t4900\tEUR\t%d\t\tkey-%d", n/payersBatch%payersItems, n, time.Now().UnixMilli(), n)}
		}
		began := time.Now()
		results := s.worker.Handle(ctx, batch)
		took = append(took, time.Since(began))
		ids := make([]string, len(batch))
		for i := range batch {
			if results[i] != nil {
				return took, results[i]
			}
			ids[i] = batch[i].ID
		}
		s.mu.Lock()
		s.unpaid = append(s.unpaid, ids...)
		s.mu.Unlock()
	}
	return took, nil
}

// payAll pays one order after the other until ctx ends.
func (s *shop) payAll(ctx context.Context, orders []string, next *atomic.Int64) (took []time.Duration, err error) {
	for ctx.Err() == nil {
		i := int(next.Add(1)) - 1
		if i >= len(orders) {
			return took, nil
		}
		began := time.Now()
		_, err := s.service.Pay(context.WithoutCancel(ctx), orders[i], order.Payment{Reference: "psp-" + orders[i], AmountMinor: 4900, Currency: "EUR"})
		if err != nil {
			return took, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}
