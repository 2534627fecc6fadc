package order

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"
)

// cpuTime is the processor time that this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkWriter_pay records payments in groups of 256, as they come when that many wait.
func BenchmarkWriter_pay(b *testing.B) {
	s := newStore(b)
	mustInsert(b, s, newItem("item", 1_000_000_000, 1))
	const size = 256
	ctx := testContext(b)
	b.ReportAllocs()
	var spent time.Duration
	for n := range b.N {
		b.StopTimer()
		tasks := distinct(fmt.Sprintf("b%d-", n), "item", size)
		if _, err := s.commit(ctx, tasks); err != nil {
			b.Fatal(err)
		}
		began := cpuTime(b)
		b.StartTimer()
		err := s.writer.batch(ctx, func(ctx context.Context, g *group) error {
			for i := range tasks {
				err := g.savepoint(ctx, func() error {
					return g.telling(ctx, func(box *outbox) error {
						_, err := payOrder(ctx, g, tasks[i].ID, money("psp-"+tasks[i].ID, 1), box)
						return err
					})
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		spent += cpuTime(b) - began
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N*size), "cpu-ns/payment")
}

// BenchmarkWriter_commit commits batches of 256 orders.
func BenchmarkWriter_commit(b *testing.B) {
	s := newStore(b)
	mustInsert(b, s, newItem("item", 1_000_000_000, 1))
	const size = 256
	ctx := testContext(b)
	b.ReportAllocs()
	var spent time.Duration
	for n := range b.N {
		b.StopTimer()
		tasks := distinct(fmt.Sprintf("b%d-", n), "item", size)
		began := cpuTime(b)
		b.StartTimer()
		if _, err := s.commit(ctx, tasks); err != nil {
			b.Fatal(err)
		}
		spent += cpuTime(b) - began
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N*size), "cpu-ns/order")
}
