package store

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/ordertest"
)

// BenchmarkHotPath_Commit commits batches of 200 orders, each of another buyer. It syncs the
// write-ahead log to the disk, as the service does.
func BenchmarkHotPath_Commit(b *testing.B) {
	s := newStore(b)
	mustInsert(b, s, ordertest.NewItem("item", 100_000_000, 1))
	ctx := b.Context()
	buyer := 0
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		tasks := batch(b, buyer, 200)
		buyer += len(tasks)
		b.StartTimer()
		out, err := s.Commit(ctx, tasks)
		if err != nil {
			b.Fatal(err)
		}
		if out[0].Status != order.StatusConfirmed {
			b.Fatalf("%+v", out[0])
		}
	}
}

// BenchmarkCommit_CPU reports the processor time that an order takes in batches of several sizes. It varies less
// than the duration, which contains the disk's.
func BenchmarkCommit_CPU(b *testing.B) {
	spent := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for _, n := range []int{45, 130, 200} {
		b.Run(fmt.Sprintf("orders=%d", n), func(b *testing.B) {
			s := newStore(b)
			mustInsert(b, s, ordertest.NewItem("item", 100_000_000, 1))
			ctx := b.Context()
			buyer := 0
			var took time.Duration
			for b.Loop() {
				tasks := batch(b, buyer, n)
				buyer += len(tasks)
				before := spent()
				if _, err := s.Commit(ctx, tasks); err != nil {
					b.Fatal(err)
				}
				took += spent() - before
			}
			b.ReportMetric(float64(took.Microseconds())/float64(b.N*n), "cpu-us/order")
		})
	}
}

// batch returns the orders of n buyers, whose numbers begin after a number.
func batch(b *testing.B, after, n int) []order.Task {
	b.Helper()
	taskID, err := accepted.NewTaskID()
	if err != nil {
		b.Fatal(err)
	}
	tasks := make([]order.Task, n)
	for i := range tasks {
		buyer := after + i + 1
		id := string(accepted.AppendOrderID(nil, taskID, i+1))
		tasks[i] = ordertest.Bought(id, "item", fmt.Sprintf("buyer-%07d", buyer), fmt.Sprintf("0197a0f2-3c4d-7abc-8def-%012d", buyer), 1)
	}
	return tasks
}
