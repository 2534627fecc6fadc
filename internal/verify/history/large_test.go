package history

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"flashsale/internal/testing/longtest"
)

// large is a correct history of n calls. A tenth of them are repeats.
func large(n int) *run {
	const items = 3
	r := &run{calls: make([]Call, 0, n)}
	var sold [items]int64
	for i := range n {
		item, buyer := i%items, i
		if i%10 == 9 {
			buyer = i - items // who bought the same item before
		}
		c := Call{
			Client: i % 64, Op: Buy, User: fmt.Sprintf("u%d", buyer), Item: fmt.Sprintf("item%d", item), Quantity: 1, Key: "k",
			Start: int64(i) * 1000, End: int64(i)*1000 + 500, Status: 201, Order: fmt.Sprintf("o%d", buyer), State: Confirmed,
		}
		if i%2 == 0 && buyer == i {
			c.refuses(429, "rate_limited")
		} else if buyer != i && buyer%2 == 0 {
			c.refuses(429, "rate_limited")
		} else if buyer == i {
			sold[item]++
			r.final.Orders = append(r.final.Orders, Order{ID: c.Order, User: c.User, Item: c.Item, Quantity: 1, Key: c.Key, Status: Confirmed})
		}
		r.calls = append(r.calls, c)
	}
	for i, n := range sold {
		r.final.Items = append(r.final.Items, Item{ID: fmt.Sprintf("item%d", i), Initial: n, Limit: 1})
	}
	r.settle()
	for i := range r.final.Items {
		r.final.Items[i].Exhausted = true
	}
	return r
}

// TestCheck_JudgesALargeHistory judges many calls, part of which are written and read back. It
// asserts no time, but a check that is quadratic in the calls would not finish.
func TestCheck_JudgesALargeHistory(t *testing.T) {
	t.Parallel()
	testLarge(t, 50_000)
}

// The size of a fault suite's whole run.
func TestCheck_JudgesALargeHistory_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	testLarge(t, 1_000_000)
}

func testLarge(t *testing.T, n int) {
	t.Helper()
	r := large(n)
	began := time.Now()
	var text bytes.Buffer
	w := NewRecorder(&text)
	for i := range r.calls[:n/10] {
		w.Record(&r.calls[i])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	written, size := time.Now(), text.Len()
	part, err := Read(&text, "history")
	if err != nil || !slices.Equal(part, r.calls[:n/10]) {
		t.Fatalf("%d calls read back: %v", len(part), err)
	}
	read := time.Now()
	v := Check(r.calls, &r.final)
	t.Logf("%d calls judged in %v; %d calls of %d bytes each written in %v, read in %v",
		n, time.Since(read), len(part), size/len(part), written.Sub(began), read.Sub(written))
	if !v.Passed || v.Counts.Calls != int64(n) || v.Counts.Replays == 0 {
		t.Fatalf("%s %+v", v.Line(), v.Findings)
	}
	r.of("o1").Status = Cancelled
	if v := Check(r.calls, &r.final); v.Passed {
		t.Error("a row that changed is not found")
	}
}

func BenchmarkCheck(b *testing.B) {
	r := large(1_000_000)
	for b.Loop() {
		if v := Check(r.calls, &r.final); !v.Passed {
			b.Fatal(v.Line())
		}
	}
}
