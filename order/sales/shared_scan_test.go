package sales

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store/storetest"
	"flashsale/queue"
)

// heldScan is a queue that counts its scans, each of which waits until the test ends it.
type heldScan struct {
	order.Queued
	mu    sync.Mutex
	scans int
	begun chan struct{}
	end   chan struct{}
}

func (w *heldScan) Scan(ctx context.Context, fn func(accepted.Order) error) error {
	w.mu.Lock()
	w.scans++
	w.mu.Unlock()
	if w.begun != nil {
		w.begun <- struct{}{}
		select {
		case <-w.end:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return w.Queued.Scan(ctx, fn)
}

// TestSales_Queued_Shared: loads that begin while the queue is scanned share the next scan.
// An order that is added during a scan is found by all loads that began after it was added.
func TestSales_Queued_Shared(t *testing.T) {
	t.Parallel()
	tasks := ordertest.NewQueue(t, redistest.Embedded(t), queue.Config{})
	q := &heldScan{Queued: accepted.NewOrders(tasks), begun: make(chan struct{}), end: make(chan struct{})}
	sales := &Source{Store: storetest.New(t), Tasks: []order.Queued{q}, Partition: func(string) int { return 0 }}
	var all sync.WaitGroup
	read := func(i int) {
		all.Go(func() {
			item := fmt.Sprint("item-", i)
			found, err := sales.Queued(await.Context(t), []string{item})
			if err != nil || len(found[item].Orders) != 1 || found[item].Orders[0].OrderID != fmt.Sprint("o", i) {
				t.Errorf("item %d: %+v, %v", i, found[item], err)
			}
		})
	}
	ordertest.MustEnqueue(t, tasks, ordertest.Leased(ordertest.Bought("o0", "item-0", "u", "k", 1)))
	read(0)
	<-q.begun
	const n = 50
	for i := 1; i <= n; i++ {
		ordertest.MustEnqueue(t, tasks, ordertest.Leased(ordertest.Bought(fmt.Sprint("o", i), fmt.Sprint("item-", i), "u", "k", 1)))
		read(i)
	}
	shared := sales.shared.queues[0]
	await.True(t, "the others to wait for the next reading", func() bool {
		shared.mu.Lock()
		defer shared.mu.Unlock()
		return shared.next != nil && len(shared.next.items) == n
	})
	q.end <- struct{}{}
	<-q.begun
	q.end <- struct{}{}
	all.Wait()
	if q.scans != 2 {
		t.Errorf("the queue was read %d times for %d loads, want 2", q.scans, n+1)
	}
}

// TestSales_Queued_CalledOff: the load that reads the queue for others may be cancelled;
// another one of them reads it then.
func TestSales_Queued_CalledOff(t *testing.T) {
	t.Parallel()
	q := &heldScan{Queued: accepted.NewOrders(ordertest.NewQueue(t, redistest.Embedded(t), queue.Config{})), begun: make(chan struct{}), end: make(chan struct{})}
	sales := &Source{Store: storetest.New(t), Tasks: []order.Queued{q}, Partition: func(string) int { return 0 }}
	first, cancel := context.WithCancel(await.Context(t))
	ended := make(chan error, 2)
	go func() {
		_, err := sales.Queued(first, []string{"a"})
		ended <- err
	}()
	<-q.begun
	for _, item := range []string{"b", "c"} {
		go func() {
			_, err := sales.Queued(await.Context(t), []string{item})
			ended <- err
		}()
	}
	await.True(t, "the others to wait", func() bool {
		shared := sales.shared.queues[0]
		shared.mu.Lock()
		defer shared.mu.Unlock()
		return shared.next != nil && len(shared.next.items) == 2
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the reader that was called off: %v", err)
	}
	<-q.begun
	q.end <- struct{}{}
	for range 2 {
		if err := <-ended; err != nil {
			t.Errorf("a reader that waited: %v", err)
		}
	}
}

// TestScanRound_Bounded: a scan returns a bounded number of orders, and covers only whole
// items. The first item is always covered; an item that was not covered is scanned again.
func TestScanRound_Bounded(t *testing.T) {
	t.Parallel()
	q := ordertest.NewQueue(t, redistest.Embedded(t), queue.Config{})
	const items, each, keep = 5, 4, 10
	names := make([]string, items)
	for i := range names {
		names[i] = fmt.Sprint("item-", i)
		ordertest.MustEnqueue(t, q, ordertest.Leased(ordertest.Distinct(fmt.Sprint("o", i, "-"), names[i], each)...))
	}
	s := &sharedScan{tasks: accepted.NewOrders(q), keep: keep, turn: make(chan struct{}, 1)}
	found, err := s.read(await.Context(t), names)
	if err != nil || len(found) != keep/each || len(found[names[0]].Orders) != each || len(found[names[1]].Orders) != each {
		t.Fatalf("%d items found, %v, want the first %d with %d orders each", len(found), err, keep/each, each)
	}
	s.keep = 1
	if found, err = s.read(await.Context(t), names[1:]); err != nil || len(found) != 1 || len(found[names[1]].Orders) != each {
		t.Errorf("found %v, %v, want only the first item, whole", found, err)
	}
	// A round that other loads have joined first.
	s.join(names[:2])
	if found, err = s.read(await.Context(t), names[2:3]); err != nil || len(found[names[2]].Orders) != each {
		t.Errorf("found %v, %v, want %s", found, err, names[2])
	}
}

// TestSharedScan_CalledOff: a load whose orders another load was to read reads them itself, if that
// one was cancelled or took too long.
func TestSharedScan_CalledOff(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
		q := ordertest.NewQueue(t, redistest.Embedded(t), queue.Config{})
		ordertest.MustEnqueue(t, q, ordertest.Leased(ordertest.Bought("o1", "item", "u", "k", 1)))
		s := &sharedScan{tasks: accepted.NewOrders(q), keep: 10, turn: make(chan struct{}, 1)}
		s.turn <- struct{}{}
		r := s.join([]string{"other"})
		ended := make(chan error, 1)
		go func() {
			found, err := s.read(await.Context(t), []string{"item"})
			if err == nil && len(found["item"].Orders) != 1 {
				err = fmt.Errorf("found %+v", found)
			}
			ended <- err
		}()
		await.True(t, "the load to join", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(r.items) == 2
		})
		if !s.begin(r) {
			t.Fatal("the scan has begun without its turn")
		}
		r.run(await.Context(t), endedScan{err: fmt.Errorf("scan: %w", cause)}, s.keep)
		<-s.turn
		if err := <-ended; err != nil {
			t.Errorf("after %v of the other load: %v", cause, err)
		}
	}
}

// endedScan is a queue whose scans end with an error.
type endedScan struct {
	order.Queued
	err error
}

func (e endedScan) Scan(context.Context, func(accepted.Order) error) error { return e.err }

// TestScanRound_Sequence: the sequence of an item is the highest of its queued orders, in any order.
func TestScanRound_Sequence(t *testing.T) {
	t.Parallel()
	var queued []accepted.Order
	for i, stamp := range []string{"1.4", "1.7", "1.5"} {
		tk := ordertest.Bought(fmt.Sprint("o", i), "item", "u", fmt.Sprint("k", i), 1)
		queued = append(queued, accepted.Order{OrderID: tk.ID, Payload: tk.Payload(), Stamp: stamp})
	}
	s := &sharedScan{tasks: listedScan{orders: queued}, keep: 10, turn: make(chan struct{}, 1)}
	if found, err := s.read(await.Context(t), []string{"item"}); err != nil || len(found["item"].Orders) != 3 || found["item"].Sequence != 7 {
		t.Errorf("found %+v, %v, want 3 orders and the sequence 7", found, err)
	}
}

// listedScan is a queue of these orders.
type listedScan struct {
	order.Queued
	orders []accepted.Order
}

func (l listedScan) Scan(_ context.Context, fn func(accepted.Order) error) error {
	for _, a := range l.orders {
		if err := fn(a); err != nil {
			return err
		}
	}
	return nil
}
