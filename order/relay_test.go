package order

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
	"flashsale/queue"
	"flashsale/webhook"
)

func mustNetworks(t testing.TB, texts ...string) []netip.Prefix {
	t.Helper()
	out, err := webhook.ParseNetworks(texts)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// auditOf reads who has done what.
func auditOf(t testing.TB, s *Store) (out []string) {
	t.Helper()
	if err := s.read.WithContext(testContext(t)).Raw("SELECT actor || ' ' || action FROM audit ORDER BY id").Scan(&out).Error; err != nil {
		t.Fatal(err)
	}
	return out
}

// forgetQueue makes Redis lose all tasks of a queue.
func forgetQueue(t testing.TB, rdb *redis.Client, q *queue.Queue, ids ...string) {
	t.Helper()
	states, err := q.Cancel(testContext(t), ids...)
	if err != nil || slices.Contains(states, "") {
		t.Fatalf("tasks to lose: %v, %v", states, err)
	}
}

// TestRelay_RedisLost: the database says what is owed, also when Redis has
// forgotten it, and when each is due.
func TestRelay_RedisLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		p := newPost(t, rdb, DelivererConfig{Retries: []time.Duration{3 * time.Second}}, queue.Config{})
		r := newReceiver(t, answering(500, 200))
		e, _ := addHook(t, p.store, r.URL)
		p.startRelay()
		stop := p.startWorker()
		first := p.tell("n", 1)[0]
		await(t, "the first try to fail", func() bool { return p.counted("failed") == 1 && statsOf(t, p.queue).Delayed == 1 })
		stop()
		events := append(p.tell("m", 20), first)
		await(t, "all to be in the queue", func() bool { st := statsOf(t, p.queue); return st.Ready == 20 && st.Delayed == 1 })
		var ids []string
		for _, e2 := range events {
			ids = append(ids, deliveryID(e2.ID, e.ID))
		}
		forgetQueue(t, rdb, p.queue, ids...)
		p.startWorker()
		p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 21})
		var tries []time.Time
		for _, got := range r.parcels() {
			if got.ID == first.ID {
				tries = append(tries, got.At)
			}
		}
		if len(tries) != 2 || tries[1].Sub(tries[0]) < 3*time.Second {
			t.Errorf("tries of the first at %v, want the second at its time", tries)
		}
		if d := p.list(e.ID)[20]; d.Attempts != 2 {
			t.Errorf("the count of tries was lost: %+v", d)
		}
		p.settledQueue()
	})
}

// TestRelay_Wakes: what the own process commits is relayed at once, and not at
// the next look.
func TestRelay_Wakes(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		p := newPost(t, rdb, DelivererConfig{}, queue.Config{})
		addHook(t, p.store, "https://a.example")
		for i, wake := range []func(){
			func() { p.tell("n", 1) },
			func() {
				mustCommit(t, p.store, bought("n0000", "item", "nu0", "k", 1), bought("x", "item", "x", "k", 1)) // one by one
			},
			func() {
				if _, _, err := p.store.bury(testContext(t), []task{bought("b", "item", "b", "k", 1)}); err != nil {
					t.Fatal(err)
				}
			},
			func() {
				if _, err := p.store.pay(testContext(t), "x", money("psp", 1)); err != nil {
					t.Fatal(err)
				}
			},
		} {
			wake()
			select {
			case <-p.store.told:
			default:
				t.Errorf("change %d woke nobody", i)
			}
		}
	})
}

// TestRelay_Full: a queue that is full loses nothing.
func TestRelay_Full(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		p := newPost(t, rdb, DelivererConfig{}, queue.Config{MaxLength: 7})
		r := newReceiver(t, nil)
		e, _ := addHook(t, p.store, r.URL)
		p.tell("n", 50)
		at, more, err := p.relay.pass(testContext(t), deliveryPlace{})
		if !errors.Is(err, errDeliveriesFull) || more || at.EventSeq != 7 || statsOf(t, p.queue).Ready != 7 {
			t.Fatalf("came to %+v, %v, %v; queue %+v", at, more, err, statsOf(t, p.queue))
		}
		p.startRelay()
		p.startWorker()
		p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 50})
		if got := r.ids(); len(got) != 50 {
			t.Errorf("%d events received", len(got))
		}
	})
}

// TestRelay_Pages: more than a page is relayed in one go, each once, and two
// relays at once do no harm.
func TestRelay_Pages(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		p := newPost(t, rdb, DelivererConfig{}, queue.Config{})
		addHook(t, p.store, "https://a.example")
		addHook(t, p.store, "https://b.example")
		const events = relayPage/2 + 100
		for from := 0; from < events; from += 89 {
			p.tell(fmt.Sprintf("n%d-", from), min(89, events-from))
		}
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				at, more := deliveryPlace{}, true
				for more {
					var err error
					if at, more, err = p.relay.pass(testContext(t), at); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		both.Wait()
		if st := statsOf(t, p.queue); st.Ready != 2*events {
			t.Errorf("queue %+v, want %d ready", st, 2*events)
		}
	})
}

// TestRelay_NotDue: what an endpoint that is down is owed later is passed over, so
// that it is not gone through again with every order that is told of.
func TestRelay_NotDue(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		p := newPost(t, rdb, DelivererConfig{}, queue.Config{})
		e, _ := addHook(t, p.store, "https://a.example")
		events := p.tell("n", relayPage+5)
		later := p.store.now().Add(time.Hour).UnixMilli()
		if err := p.store.write.Exec("UPDATE webhook_deliveries SET next_at = ?", later).Error; err != nil {
			t.Fatal(err)
		}
		at, more, err := p.relay.pass(testContext(t), deliveryPlace{})
		if want := (deliveryPlace{events[relayPage-1].Seq, e.ID}); err != nil || !more || at != want {
			t.Fatalf("came to %+v, %v, %v, want %+v", at, more, err, want)
		}
		due := p.tell("m", 1)[0]
		at, more, err = p.relay.pass(testContext(t), at)
		if want := (deliveryPlace{due.Seq, e.ID}); err != nil || more || at != want {
			t.Errorf("came to %+v, %v, %v, want %+v", at, more, err, want)
		}
		if st := statsOf(t, p.queue); st.Ready != 1 || st.Delayed != 0 {
			t.Errorf("queue %+v, want what is due", st)
		}
	})
}

// TestRelay_LongLook: where to go through all that is pending takes longer than
// until the next look, the end of it is reached all the same.
func TestRelay_LongLook(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		p := newPost(t, rdb, DelivererConfig{}, queue.Config{})
		addHook(t, p.store, "https://a.example")
		p.tell("n", 2*relayPage+5)
		p.relay.every = time.Nanosecond
		p.startRelay()
		await(t, "all to be in the queue", func() bool { return statsOf(t, p.queue).Ready == 2*relayPage+5 })
	})
}

// TestRelay_bury: what the queue has given up, because it killed its workers, is
// a dead letter of the database's, and can be asked for again.
func TestRelay_bury(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		p := newPost(t, rdb, DelivererConfig{}, queue.Config{})
		r := newReceiver(t, nil)
		e, _ := addHook(t, p.store, r.URL)
		event := p.tell("n", 1)[0]
		if _, _, err := p.relay.pass(testContext(t), deliveryPlace{}); err != nil {
			t.Fatal(err)
		}
		f, err := p.queue.Dequeue(testContext(t), 1)
		if err != nil || len(f.Tasks) != 1 {
			t.Fatal(f, err)
		}
		if _, err := p.queue.Reject(testContext(t), queue.Rejection{Task: f.Tasks[0], Dead: true, Reason: "worker lost"}); err != nil {
			t.Fatal(err)
		}
		if err := p.relay.keep(testContext(t)); err != nil {
			t.Fatal(err)
		}
		if d := p.list(e.ID)[0]; d.State != DeliveryDead || d.LastError != "given up by the queue: worker lost" {
			t.Errorf("delivery %+v", d)
		}
		p.settledQueue()
		if err := p.admin.Redeliver(testContext(t), e.ID, event.ID, By{}); err != nil {
			t.Fatal(err)
		}
		p.startWorker()
		p.awaitStates(e.ID, map[DeliveryState]int{DeliveryDelivered: 1})
	})
}

// TestStore_purge: an event is kept for a week, and as long as it is owed.
func TestStore_purge(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		p := newPost(t, rdb, DelivererConfig{}, queue.Config{})
		c := setClock(p.store)
		a, _ := addHook(t, p.store, "https://a.example")
		b, _ := addHook(t, p.store, "https://b.example")
		old := p.tell("n", purgePage+5)
		c.Add((24 * time.Hour).Milliseconds())
		fresh := p.tell("m", 3)
		ended := "UPDATE webhook_deliveries SET state = ? WHERE endpoint_id = ?"
		if err := errors.Join(p.store.write.Exec(ended, "delivered", a.ID).Error, p.store.write.Exec(ended, "dead", b.ID).Error); err != nil {
			t.Fatal(err)
		}
		if err := p.store.write.Exec("UPDATE webhook_deliveries SET state = 'pending' WHERE endpoint_id = ? AND event_seq = ?", b.ID, old[2].Seq).Error; err != nil {
			t.Fatal(err)
		}
		kept := func() (seqs []int64) {
			t.Helper()
			for _, e := range allTold(t, p.store) {
				seqs = append(seqs, e.Seq)
				if e.Owed != 2 {
					t.Errorf("event %d has %d deliveries", e.Seq, e.Owed)
				}
			}
			return seqs
		}
		c.Add((EventRetention - 24*time.Hour).Milliseconds())
		if err := p.relay.keep(testContext(t)); err != nil {
			t.Fatal(err)
		}
		if got := kept(); len(got) != purgePage+8 {
			t.Errorf("%d events after exactly a week", len(got))
		}
		c.Add(1)
		if err := p.relay.keep(testContext(t)); err != nil {
			t.Fatal(err)
		}
		if got := kept(); !slices.Equal(got, []int64{old[2].Seq, fresh[0].Seq, fresh[1].Seq, fresh[2].Seq}) {
			t.Errorf("kept %v", got)
		}
		var deliveries int64
		if err := p.store.read.Raw("SELECT COUNT(*) FROM webhook_deliveries").Scan(&deliveries).Error; err != nil || deliveries != 8 {
			t.Errorf("%d deliveries are left, %v", deliveries, err)
		}
		state, err := p.store.outboxState(testContext(t))
		if err != nil || state.Events != fresh[2].Seq-old[2].Seq+1 || state.OldestPending != EventRetention+time.Millisecond {
			t.Errorf("outbox %+v, %v", state, err)
		}
		// Numbers are not used twice, or the relay would pass over what comes next.
		if err := p.store.write.Exec("DELETE FROM webhook_deliveries").Error; err != nil {
			t.Fatal(err)
		}
		c.Add(EventRetention.Milliseconds())
		if err := p.relay.keep(testContext(t)); err != nil {
			t.Fatal(err)
		}
		if got := kept(); len(got) != 0 {
			t.Errorf("kept %v", got)
		}
		if next := p.tell("o", 1)[0]; next.Seq <= fresh[2].Seq {
			t.Errorf("number %d after %d", next.Seq, fresh[2].Seq)
		}
		if empty, err := newStore(t).outboxState(testContext(t)); err != nil || empty != (OutboxState{}) {
			t.Errorf("an empty outbox: %+v, %v", empty, err)
		}
	})
}

// TestStore_purge_Dead: a dead letter whose last try was a week after its event, or
// later, is there for another week: nobody could have asked for it before.
func TestStore_purge_Dead(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		p := newPost(t, rdb, DelivererConfig{}, queue.Config{})
		c := setClock(p.store)
		e, _ := addHook(t, p.store, "https://a.example")
		events := p.tell("n", 2)
		c.Add((EventRetention + time.Hour).Milliseconds())
		for i, state := range []DeliveryState{DeliveryDead, DeliveryDelivered} {
			j, err := p.store.job(testContext(t), events[i].ID, e.ID)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.store.record(testContext(t), []tried{{job: &j, state: state, attempts: 10}}); err != nil {
				t.Fatal(err)
			}
		}
		for _, kept := range [][]DeliveryState{{DeliveryDead}, nil} {
			if err := p.relay.keep(testContext(t)); err != nil {
				t.Fatal(err)
			}
			var got []DeliveryState
			for _, d := range p.list(e.ID) {
				got = append(got, d.State)
			}
			if !slices.Equal(got, kept) {
				t.Errorf("kept %v, want %v", got, kept)
			}
			c.Add(EventRetention.Milliseconds() + 1)
		}
	})
}

// TestStore_purge_Readers: to look for what can be forgotten keeps no order
// waiting, and what was asked for anew since that look is kept.
func TestStore_purge_Readers(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		p := newPost(t, rdb, DelivererConfig{}, queue.Config{})
		c := setClock(p.store)
		e, _ := addHook(t, p.store, "https://a.example")
		events := p.tell("n", 2)
		c.Add((EventRetention + time.Minute).Milliseconds())
		before := p.store.now().Add(-EventRetention)
		order := p.store.write.Begin() // one that is being written
		err := p.store.purge(testContext(t), before)
		if err := errors.Join(order.Error, order.Rollback().Error); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Errorf("with nothing to forget: %v", err)
		}
		if err := p.store.write.Exec("UPDATE webhook_deliveries SET state = 'dead'").Error; err != nil {
			t.Fatal(err)
		}
		seqs, err := p.store.outdated(testContext(t), before)
		if err != nil || len(seqs) != 2 {
			t.Fatalf("to forget: %v, %v", seqs, err)
		}
		if err := p.admin.Redeliver(testContext(t), e.ID, events[1].ID, By{}); err != nil {
			t.Fatal(err)
		}
		if err := p.store.forget(testContext(t), seqs, before); err != nil {
			t.Fatal(err)
		}
		if left := allTold(t, p.store); len(left) != 1 || left[0].ID != events[1].ID || left[0].Owed != 1 {
			t.Errorf("left: %+v", left)
		}
	})
}

func TestLanes(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	l := newLanes(2)
	for i := range 2 {
		if w := l.enter("a", now); w != 0 {
			t.Errorf("place %d: %v", i, w)
		}
	}
	if w := l.enter("b", now); w != 0 {
		t.Errorf("another endpoint: %v", w)
	}
	// Each is put off a little longer, by what a place takes to be free.
	last := time.Duration(0)
	for range 100 {
		w := l.enter("a", now)
		if w != last+laneTypical/2 {
			t.Fatalf("put off for %v after %v", w, last)
		}
		last = w
	}
	l.leave("a", 15*time.Second)
	if w := l.enter("a", now); w != 0 {
		t.Errorf("the free place: %v", w)
	}
	// A slow endpoint's come back at random times within bounds.
	for range 100 {
		if w := l.enter("a", now); w <= 0 || w > laneWait {
			t.Fatalf("put off for %v", w)
		}
	}
	l.leave("a", time.Second)
	l.leave("a", time.Second)
	l.leave("b", time.Second)
	if l.enter("c", now.Add(2*laneIdle)); len(l.of) != 1 {
		t.Errorf("%d lanes are kept", len(l.of))
	}
}
