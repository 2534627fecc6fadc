package inventory

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
	"flashsale/inventory/accepted"
	"flashsale/queue"
)

// BenchmarkPurchase_RedisCPU reports the processor time that one order costs Redis, by INFO
// cpu: for its purchase, and for the lease and acknowledgement of its task. One operation is
// one batch.
func BenchmarkPurchase_RedisCPU(b *testing.B) {
	for _, batch := range []int{1, 16, 51, 100, 200} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			rdb := redistest.Redis(b)
			ctx := context.Background()
			s, sel := benchSeller(b, rdb)
			cpu := func() (usec float64) {
				info, err := rdb.Info(ctx, "cpu").Result()
				if err != nil {
					b.Fatal(err)
				}
				for _, field := range []string{"used_cpu_user_main_thread:", "used_cpu_sys_main_thread:"} {
					_, after, _ := strings.Cut(info, field)
					text, _, _ := strings.Cut(after, "\r\n")
					seconds, err := strconv.ParseFloat(text, 64)
					if err != nil {
						b.Fatal(err)
					}
					usec += seconds * 1e6
				}
				return usec
			}
			buyer := 0
			var sold, handled float64
			for b.Loop() {
				requests := s.requests(buyer, batch)
				buyer += batch
				prepare(b, sel, requests)
				t0 := cpu()
				reply, err := sel.send(ctx, requests)
				if err != nil || strings.Count(reply.verdicts, "A") != batch {
					b.Fatalf("%+v, %v", reply, err)
				}
				t1 := cpu()
				finish(b, s.queue, batch)
				sold += t1 - t0
				handled += cpu() - t1
			}
			orders := float64(b.N) * float64(batch)
			b.ReportMetric(sold/orders, "purchase-us/order")
			b.ReportMetric(handled/orders, "lease+ack-us/order")
			b.ReportMetric((sold+handled)/orders, "us/order")
		})
	}
}

// BenchmarkHotPath_PurchaseScript sends batches of 100 purchases to Redis.
func BenchmarkHotPath_PurchaseScript(b *testing.B) {
	ctx := b.Context()
	s, sel := benchSeller(b, redistest.Volatile(b))
	buyer := 0
	send := func(requests []*Request) {
		reply, err := sel.send(ctx, requests)
		if err != nil || strings.Count(reply.verdicts, "A") != len(requests) {
			b.Fatalf("%+v, %v", reply, err)
		}
	}
	next := func() []*Request {
		requests := s.requests(buyer, 100)
		buyer += len(requests)
		prepare(b, sel, requests)
		return requests
	}
	requests := next()
	send(requests) // the first call also loads the script and grows the seller's buffers
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		finish(b, s.queue, len(requests))
		requests = next()
		b.StartTimer()
		send(requests)
	}
}

// BenchmarkHotPath_Batch builds what the purchase script is sent for a batch of 100 purchases.
func BenchmarkHotPath_Batch(b *testing.B) {
	const taskID = "0197a0f2-3c4d-7abc-8def-0123456789ab"
	s := &shop{item: "item-1"}
	requests := s.requests(0, 100)
	var lines, records, hashes []byte
	var values []string
	b.ReportAllocs()
	for b.Loop() {
		name(requests, taskID)
		records = appendRecords(records[:0], requests)
		hashes = appendKeyHashes(hashes[:0], requests)
		values = appendValues(values[:0], requests)
		lines = appendLines(lines[:0], requests)
	}
}

// benchSeller opens a sale with a large stock, and returns a seller that holds its lock.
func benchSeller(b *testing.B, rdb redis.UniversalClient) (*shop, *seller) {
	b.Helper()
	s := newShop(b, rdb, open(1_000_000_000, 1), 0)
	v := s.inventory(b, Config{MaxBatch: 256})
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := v.Open(ctx, s.item); err != nil {
		b.Fatal(err)
	}
	sel := newSeller(v, s.item)
	if _, err := sel.lock.hold(ctx); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(sel.lock.release)
	return s, sel
}

// finish leases and acknowledges the task of a batch of orders.
func finish(b *testing.B, q *queue.Queue, orders int) {
	b.Helper()
	f, err := q.Dequeue(b.Context(), orders)
	if err != nil || len(f.Tasks) != 1 {
		b.Fatal(len(f.Tasks), err)
	}
	if _, err := q.Ack(b.Context(), f.Tasks...); err != nil {
		b.Fatal(err)
	}
}

// requests returns the purchases of n buyers, whose numbers begin after a number. They are as
// long as those of the service.
func (s *shop) requests(after, n int) []*Request {
	all := make([]*Request, n)
	for i := range all {
		buyer := after + i + 1
		r := s.request(fmt.Sprintf("buyer-%07d", buyer), "0197a0f2-3c4d-7abc-8def-"+fmt.Sprintf("%012d", buyer), 1)
		r.Payload = "2\t" + s.item + "\t" + r.Buyer + "\t1\t4900\tEUR\t1790000000000\t0123456789abcdef\t" + r.IdempotencyKey
		all[i] = r
	}
	return all
}

func prepare(b *testing.B, sel *seller, requests []*Request) {
	b.Helper()
	parcel, err := accepted.NewTaskID()
	if err != nil {
		b.Fatal(err)
	}
	sel.parcel = parcel
	name(requests, parcel)
}
