package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"flashsale/bench/internal/history"
	"flashsale/order"
	"flashsale/order/store"
	"flashsale/order/worker"
	"flashsale/queue"
)

const (
	// storageBar is how many kilobytes a worker may write to disk per order.
	storageBar = 3
	// storageRateBar is the rate of commits in a large database, relative to an empty one.
	storageRateBar = 0.9
	// saleOrders is the number of orders of a sale, of the past and of those measured.
	saleOrders = 10_000
	// largeSale is the size of one more sale, which has no target.
	largeSale = 100_000
)

// measureStorage commits sales through the worker's code in a database with a long history
// and, batch by batch in turn, in an empty one. It counts the bytes that this process writes
// to disk: the log, the checkpoints, and the last checkpoint at the end.
func measureStorage(ctx context.Context, s *sizes) (err error) {
	full, err := s.newLedgerWriter(ctx, history.History{Ended: s.scaled(1000), EndedOrders: saleOrders})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, full.close()) }()
	empty, err := s.newLedgerWriter(ctx, history.History{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, empty.close()) }()
	file, err := os.Stat(full.rig.path())
	if err != nil {
		return err
	}
	s.say("%d orders of the past in the database, %.0f bytes each", full.past, float64(file.Size())/float64(full.past))
	// A sale has its full size unless the scale is tiny, because its cost depends on the size.
	size, large := min(saleOrders, s.scaled(100*saleOrders)), min(largeSale, s.scaled(100*largeSale))
	for sale := range 5 {
		item := "running-" + strconv.Itoa(sale)
		if err := errors.Join(full.open(ctx, item), empty.open(ctx, item)); err != nil {
			return err
		}
		for n := size; n > 0; {
			batch := min(100+rand.IntN(157), n) //nolint:gosec // a load needs no secrets
			if err := full.commit(ctx, item, batch); err != nil {
				return err
			}
			if err := empty.commit(ctx, item, batch); err != nil {
				return err
			}
			n -= batch
		}
	}
	if err := errors.Join(full.checkpoint(ctx), empty.checkpoint(ctx)); err != nil {
		return err
	}
	s.say("sales of %d orders: %.2f KB per order and %.0f orders/s; empty database: %.2f KB and %.0f/s",
		size, full.kilobytes(), full.rate(), empty.kilobytes(), empty.rate())
	s.atMost("storage_kb_per_order", full.kilobytes(), storageBar)
	s.atLeast("storage_commits_full/empty", full.rate()/empty.rate(), storageRateBar)

	full.reset()
	if err := full.open(ctx, "large"); err != nil {
		return err
	}
	for n := large; n > 0; n -= min(256, n) {
		if err := full.commit(ctx, "large", min(256, n)); err != nil {
			return err
		}
	}
	if err := full.checkpoint(ctx); err != nil {
		return err
	}
	s.say("one sale of %d orders: %.2f KB per order and %.0f orders/s", large, full.kilobytes(), full.rate())
	return nil
}

// ledgerWriter commits orders to the database of a rig as a worker does, in this
// process.
type ledgerWriter struct {
	rig       *rig
	store     *store.Store
	fulfiller *worker.Fulfiller
	past      int
	failed    error // the first error of the fulfiller

	orders int
	bytes  int64
	took   time.Duration
}

func (s *sizes) newLedgerWriter(ctx context.Context, h history.History) (*ledgerWriter, error) {
	r, err := s.newRig(ctx, h)
	if err != nil {
		return nil, err
	}
	store, err := store.Open(ctx, "sqlite:"+r.path())
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	w := &ledgerWriter{rig: r, store: store, past: h.Orders()}
	w.fulfiller = worker.NewFulfiller(store, r.redis, nil, w.fail)
	return w, nil
}

// fail keeps the first error.
func (w *ledgerWriter) fail(err error) {
	if w.failed == nil {
		w.failed = err
	}
}

func (w *ledgerWriter) close() error { return errors.Join(w.store.Close(), w.rig.close()) }

func (w *ledgerWriter) open(ctx context.Context, item string) error {
	_, err := w.store.InsertItem(ctx, order.NewItem{ID: item, Name: item, PriceMinor: 4900, Currency: "EUR", Stock: stock, PerUserLimit: 1_000_000})
	return err
}

// commit commits a batch of orders, each of a random buyer with a random key.
func (w *ledgerWriter) commit(ctx context.Context, item string, n int) error {
	leased := make([]queue.Leased, n)
	for i := range leased {
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		buyer := 1_000_000 + rand.IntN(1_000_000) //nolint:gosec // a load needs no secrets
		payload := fmt.Sprintf("2\t%s\tbuyer-%d\t1\t4900\tEUR\t%d\t\t%s", item, buyer, time.Now().UnixMilli(), uuid.New())
		leased[i].ID, leased[i].Payload = id.String(), []byte(payload)
	}
	return w.count(func() error {
		for _, err := range w.fulfiller.Handle(ctx, leased) {
			w.fail(err)
		}
		w.orders += n
		return w.failed
	})
}

// checkpoint moves the write-ahead log into the database's file.
func (w *ledgerWriter) checkpoint(ctx context.Context) error {
	db, err := w.store.Writer().DB()
	if err != nil {
		return err
	}
	return w.count(func() error {
		_, err := db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
		return err
	})
}

// count adds the time and the bytes of fn.
func (w *ledgerWriter) count(fn func() error) error {
	before, err := writtenBytes()
	if err != nil {
		return err
	}
	began := time.Now()
	err = fn()
	w.took += time.Since(began)
	after, rerr := writtenBytes()
	w.bytes += after - before
	return errors.Join(err, rerr)
}

func (w *ledgerWriter) reset() { w.orders, w.bytes, w.took = 0, 0, 0 }

func (w *ledgerWriter) kilobytes() float64 { return float64(w.bytes) / 1000 / float64(w.orders) }

func (w *ledgerWriter) rate() float64 { return float64(w.orders) / w.took.Seconds() }

// writtenBytes is how many bytes this process has written to disk since it began.
func writtenBytes() (int64, error) {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			return strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, errors.New("/proc/self/io does not count written bytes")
}
