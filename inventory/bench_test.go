package inventory

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"flashsale/internal/testing/redistest"
	"flashsale/inventory/accepted"
)

// BenchmarkPurchase_RedisCPU reports the processor time that one order costs Redis, by INFO
// cpu: for its purchase, and for the lease and acknowledgement of its task. One operation is
// one batch.
func BenchmarkPurchase_RedisCPU(b *testing.B) {
	for _, batch := range []int{1, 16, 51, 100, 200} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			rdb := redistest.Redis(b)
			s := newShop(b, rdb, open(1_000_000_000, 1), 0)
			v := s.inventory(b, Config{MaxBatch: 256})
			ctx := context.Background()
			if err := v.Open(ctx, s.item); err != nil {
				b.Fatal(err)
			}
			sel := newSeller(v, s.item)
			brief, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			if err := sel.hold(brief); err != nil {
				b.Fatal(err)
			}
			defer sel.letGo()
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
				requests := make([]*Request, batch)
				for i := range requests {
					buyer++
					r := s.request(fmt.Sprintf("buyer-%07d", buyer), "0197a0f2-3c4d-7abc-8def-"+fmt.Sprintf("%012d", buyer), 1)
					r.Payload = "2\t" + s.item + "\t" + r.Buyer + "\t1\t4900\tEUR\t1790000000000\t0123456789abcdef\t" + r.IdempotencyKey
					requests[i] = r
				}
				prepare(b, sel, requests)
				t0 := cpu()
				reply, err := sel.send(ctx, requests)
				if err != nil || strings.Count(reply.verdicts, "A") != batch {
					b.Fatalf("%+v, %v", reply, err)
				}
				t1 := cpu()
				f, err := s.queue.Dequeue(ctx, batch)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := s.queue.Ack(ctx, f.Tasks...); err != nil {
					b.Fatal(err)
				}
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

func prepare(b *testing.B, sel *seller, requests []*Request) {
	b.Helper()
	parcel, err := accepted.NewTaskID()
	if err != nil {
		b.Fatal(err)
	}
	sel.parcel = parcel
	name(requests, parcel)
}
