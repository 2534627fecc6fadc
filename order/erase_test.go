package order

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/queue"
)

// erasure is the erasure of the tests.
var erasure = Erasure{Actor: "root", Reason: "asked for by letter 7", RequestID: "req-1"}

// buyerService erases and exports the buyers of a site.
func buyerService(s *site) *BuyerService {
	return &BuyerService{Store: s.store, Tasks: []Tasks{s.queue}, Queued: inventory.NewQueuedIndex(s.rdb, s.queue), Renamer: s.stock}
}

// erasing lets the site list queued orders, and notify those who follow orders.
func (s *site) erasing() *site {
	s.service.Queued = inventory.NewQueuedIndex(s.rdb, s.queue)
	s.service.Bell = NewBell(s.rdb, s.heard)
	return s
}

func (s *site) mustErase(user string) Erased {
	s.t.Helper()
	done, err := buyerService(s).EraseBuyer(await.Context(s.t), user, erasure)
	if err != nil {
		s.t.Fatal(err)
	}
	return done
}

// traces lists where a name occurs: in any column of the database, in any byte of its
// files, and in any key or value of Redis.
func (s *site) traces(name string) []string {
	s.t.Helper()
	ctx := await.Context(s.t)
	var found []string
	var tables []string
	if err := s.store.Reader().Raw("SELECT name FROM sqlite_master WHERE type = 'table'").Scan(&tables).Error; err != nil {
		s.t.Fatal(err)
	}
	for _, table := range tables {
		var rows []map[string]any
		if err := s.store.Reader().WithContext(ctx).Raw("SELECT * FROM " + table).Scan(&rows).Error; err != nil {
			s.t.Fatal(err)
		}
		if strings.Contains(fmt.Sprint(rows), name) {
			found = append(found, "table "+table)
		}
	}
	path := s.store.Path()
	for _, file := range []string{path, path + "-wal"} {
		raw, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			s.t.Fatal(err)
		}
		if bytes.Contains(raw, []byte(name)) {
			found = append(found, "file "+file)
		}
	}
	keys, err := s.rdb.Keys(ctx, "*").Result()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, key := range keys {
		var value any
		switch kind := s.rdb.Type(ctx, key).Val(); kind {
		case "string":
			value = s.rdb.Get(ctx, key).Val()
		case "hash":
			value = s.rdb.HGetAll(ctx, key).Val()
		case "zset":
			value = s.rdb.ZRange(ctx, key, 0, -1).Val()
		case "list":
			value = s.rdb.LRange(ctx, key, 0, -1).Val()
		case "stream":
			value = s.rdb.XRange(ctx, key, "-", "+").Val()
		case "none": // a key of another test, deleted meanwhile
		default:
			s.t.Fatalf("key %s is a %s, which this test cannot read", key, kind)
		}
		if strings.Contains(key+fmt.Sprint(value), name) {
			found = append(found, "redis "+key)
		}
	}
	return found
}

// TestService_EraseBuyer erases a buyer with orders in every state: the name occurs
// nowhere, and stock, limits and payments are unchanged.
func TestService_EraseBuyer(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, asking("", 20, 4, time.Hour)).erasing()
		stop := s.work()
		alice, bob := "alice-"+s.item, "bob-"+s.item
		paid := s.mustPlace(s.purchase(alice, alice+"@mail-1", 1, long)).Order
		held := s.mustPlace(s.purchase(alice, alice+"@mail-2", 2, long)).Order
		gone := s.mustPlace(s.purchase(alice, alice+"@mail-3", 1, long)).Order
		bobs := s.mustPlace(s.purchase(bob, "b", 4, long)).Order
		s.drained()
		refused := bought("refused-"+s.item, s.item, alice, alice+"@mail-4", 9)
		mustCommit(t, s.store, refused)
		if _, err := s.service.Pay(await.Context(t), paid.ID, money("psp-9", 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.service.Cancel(await.Context(t), gone.ID, Canceller{UserID: alice}); err != nil {
			t.Fatal(err)
		}
		for _, entry := range [][2]string{{alice, `{"a":1}`}, {"root", `{"user_id":"` + alice + `"}`}, {"root", `{"user_id":"` + bob + `"}`}} {
			err := s.store.Writer().Exec("INSERT INTO audit (at, actor, action, before) VALUES (1, ?, 'test', ?)", entry[0], entry[1]).Error
			if err != nil {
				t.Fatal(err)
			}
		}
		before := ledgerOf(s)
		if got := s.traces(alice); len(got) < 4 {
			t.Fatalf("before the erasure the name occurs only in %v", got)
		}
		done := s.mustErase(alice)
		if done.Orders != 4 || !strings.HasPrefix(done.Pseudonym, "erased-") {
			t.Errorf("erased: %+v", done)
		}
		if got := s.traces(alice); len(got) > 0 {
			t.Errorf("the name still occurs in %v", got)
		}
		if l := ledgerOf(s); l != before {
			t.Errorf("ledger %+v, before %+v", l, before)
		}
		auditStore(t, s.store)
		rows := allRows(t, s.store)
		for _, id := range []string{paid.ID, held.ID, gone.ID, refused.ID} {
			if r := rows[id]; r.UserID != done.Pseudonym || r.IdempotencyKey != id {
				t.Errorf("order %+v", r)
			}
		}
		if r := rows[paid.ID]; r.PaymentReference != "psp-9" || payments(t, s.store)["psp-9"] != paid.ID+" accepted" {
			t.Errorf("the payment: %+v", r)
		}
		if r := rows[bobs.ID]; r.UserID != bob || r.IdempotencyKey != "b" {
			t.Errorf("another's order: %+v", r)
		}
		// The audit records it, and the changes by others.
		var after []string
		err := s.store.Reader().Raw("SELECT actor || ' ' || action || ' ' || item_id || ' ' || request_id || ' ' || before || ' ' || after FROM audit WHERE action <> 'item.create' ORDER BY id").Scan(&after).Error
		if err != nil {
			t.Fatal(err)
		}
		note := func(item string, orders int) string {
			return fmt.Sprintf(`root buyer.erase %s req-1  {"pseudonym":%q,"orders":%d,"reason":"asked for by letter 7"}`, item, done.Pseudonym, orders)
		}
		want := []string{
			done.Pseudonym + ` test   {"a":1} `, `root test   {"user_id":"` + done.Pseudonym + `"} `, `root test   {"user_id":"` + bob + `"} `,
			note(s.item, 4), note("", 0),
		}
		if fmt.Sprint(after) != fmt.Sprint(want) {
			t.Errorf("audit\n%s\nwant\n%s", strings.Join(after, "\n"), strings.Join(want, "\n"))
		}
		// A repeat finds nothing, and writes nothing.
		if again := s.mustErase(alice); again != (Erased{}) {
			t.Errorf("once more: %+v", again)
		}
		// The limits still apply, a repeat is recognized, and the pseudonym's order can
		// end.
		if _, err := s.service.Place(await.Context(t), s.purchase(bob, "b2", 1, long)); !errors.Is(err, inventory.ErrUserLimit) {
			t.Errorf("bob above his limit: %v", err)
		}
		if again := s.mustPlace(s.purchase(bob, "b", 4, long)); again.Order.ID != bobs.ID || !again.Replayed {
			t.Errorf("bob repeats: %+v", again)
		}
		if _, err := s.service.Place(await.Context(t), s.purchase(done.Pseudonym, "x", 2, long)); !errors.Is(err, inventory.ErrUserLimit) {
			t.Errorf("the pseudonym holds nothing: %v", err)
		}
		if _, err := s.service.Cancel(await.Context(t), held.ID, Canceller{Admin: true}); err != nil {
			t.Fatal(err)
		}
		if l := ledgerOf(s); l.Left != before.Left+2 || l.Held != before.Held-2 || len(owedOf(t, s.store)) != 0 {
			t.Errorf("after the cancellation %+v, before %+v, owed %v", l, before, owedOf(t, s.store))
		}
		// The same user is a new buyer now.
		if p := s.mustPlace(s.purchase(alice, alice+"@mail-1", 4, long)); p.Replayed {
			t.Errorf("a new purchase: %+v", p)
		}
		s.drained()
		stop()
		auditStore(t, s.store)
	})
}

// TestService_EraseBuyer_InFlight: while a purchase of the buyer is in the queue,
// dead letters included, nothing is erased.
func TestService_EraseBuyer_InFlight(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 9, 9)).erasing()
		mustCommit(t, s.store, bought("done-"+s.item, s.item, "alice", "k0", 1))
		queued := s.mustPlace(s.purchase("alice", "k1", 1, 0)).Order
		refuse := func(when string) {
			t.Helper()
			if _, err := buyerService(s).EraseBuyer(await.Context(t), "alice", erasure); !errors.Is(err, ErrOrdersInFlight) {
				t.Errorf("%s: %v", when, err)
			}
			if r := allRows(t, s.store)["done-"+s.item]; r.UserID != "alice" || r.IdempotencyKey != "k0" {
				t.Errorf("%s: %+v", when, r)
			}
		}
		refuse("ready")
		f, err := s.queue.Dequeue(await.Context(t), 1)
		if err != nil || len(f.Tasks) != 1 {
			t.Fatal(f, err)
		}
		refuse("leased")
		if _, err := s.queue.Reject(await.Context(t), queue.Rejection{Task: f.Tasks[0], Dead: true}); err != nil {
			t.Fatal(err)
		}
		refuse("dead")
		// A purchase between the first check and the lock is found under the lock.
		late := buyerService(s)
		late.Queued = &blindOnce{QueuedTasks: late.Queued}
		if _, err := late.EraseBuyer(await.Context(t), "alice", erasure); !errors.Is(err, ErrOrdersInFlight) {
			t.Errorf("between the checks: %v", err)
		}
		if _, err := s.queue.RunNow(await.Context(t), queued.ID); err != nil {
			t.Fatal(err)
		}
		s.work()
		s.drained()
		if done := s.mustErase("alice"); done.Orders != 2 {
			t.Errorf("erased: %+v", done)
		}
		ledgerOf(s)
		late.Queued = unreadable{}
		if _, err := late.EraseBuyer(await.Context(t), "alice", erasure); !errors.Is(err, inventory.ErrUnavailable) {
			t.Errorf("with the queue down: %v", err)
		}
	})
}

// blindOnce is a log of queued orders that is empty at the first read.
type blindOnce struct {
	QueuedTasks
	looked bool
}

func (b *blindOnce) Tasks(ctx context.Context, buyer, before string, limit int, fn func(id string, payload []byte) bool) (string, error) {
	if !b.looked {
		b.looked = true
		return "", nil
	}
	return b.QueuedTasks.Tasks(ctx, buyer, before, limit, fn)
}

// unreadable is a log of queued orders that cannot be read.
type unreadable struct{}

func (unreadable) Tasks(context.Context, string, string, int, func(string, []byte) bool) (string, error) {
	return "", inventory.ErrUnavailable
}

// TestService_EraseBuyer_Returns: releases that were pending during the erasure are made
// once, even by a process that still uses the old name.
func TestService_EraseBuyer_Returns(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 9, 9)).erasing()
		s.work()
		alice := "alice-" + s.item
		o := s.mustPlace(s.purchase(alice, "k", 3, long)).Order
		s.drained()
		_, owed, err := s.store.cancel(await.Context(t), o.ID, Canceller{UserID: alice})
		if err != nil || len(owed) != 1 {
			t.Fatal(owed, err)
		}
		done := s.mustErase(alice)
		if got := s.traces(alice); len(got) > 0 {
			t.Errorf("the name still occurs in %v", got)
		}
		if owed := owedOf(t, s.store); len(owed) != 1 {
			t.Errorf("pending releases: %v", owed)
		}
		want := Ledger{Initial: 9, Left: 9}
		if l := ledgerOf(s); l != want {
			t.Errorf("ledger %+v", l)
		}
		// A process that read the pending releases before the erasure.
		if waiting, failed := s.service.Returns.give(await.Context(t), owed); len(waiting) != 1 || len(failed) != 0 {
			t.Errorf("under the old name: waiting %v, failed %v", waiting, failed)
		}
		if l := ledgerOf(s); l != want {
			t.Errorf("ledger %+v", l)
		}
		// The buyer buys again with the old key, which now belongs to a new order.
		s.mustPlace(s.purchase(alice, "k", 2, long))
		s.drained()
		s.service.Returns.give(await.Context(t), owed)
		want = Ledger{Initial: 9, Left: 7, Sold: 2}
		if l := ledgerOf(s); l != want {
			t.Errorf("ledger %+v", l)
		}
		setClock(s.store).Add(2 * sweepGrace.Milliseconds())
		if _, err := NewSweeper(s.fulfiller, SweeperConfig{Dead: []DeadLetters{s.queue}}).Sweep(await.Context(t)); err != nil {
			t.Error(err)
		}
		if l := ledgerOf(s); l != want || len(owedOf(t, s.store)) != 0 {
			t.Errorf("ledger %+v, owed %v", l, owedOf(t, s.store))
		}
		if r := allRows(t, s.store)[o.ID]; r.UserID != done.Pseudonym {
			t.Errorf("order %+v", r)
		}
		auditStore(t, s.store)
	})
}

// TestService_EraseBuyer_Audit: a buyer may have the name of a field or value of the
// service, which stays; and a buyer may be an admin, whose own erasure leaves no name
// either.
func TestService_EraseBuyer_Audit(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 9, 9)).erasing()
		s.work()
		admin := By{Actor: "admin"}
		if _, err := s.sales.ChangeItem(await.Context(t), s.item, ItemChange{PerUserLimit: ptr[int64](5)}, admin); err != nil {
			t.Fatal(err)
		}
		o := s.mustPlace(s.purchase("admin", "k", 1, long)).Order
		if _, err := s.service.Cancel(await.Context(t), o.ID, Canceller{Admin: true, UserID: "admin"}); err != nil {
			t.Fatal(err)
		}
		// A refunded order and a refunded payment, of a buyer who stays.
		refunded := s.mustPay("carol", "k", 1)
		if _, err := s.service.Pay(await.Context(t), refunded.ID, money("twice-"+s.item, 1)); !errors.Is(err, ErrOrderFinal) {
			t.Fatal(err)
		}
		twice := paymentIDs(t, s.store)["twice-"+s.item]
		if _, err := (&PaymentService{Store: s.store}).MarkRefunded(await.Context(t), twice, admin); err != nil {
			t.Fatal(err)
		}
		if _, err := s.service.Refund(await.Context(t), refunded.ID, Refund{Restock: true, By: admin}); err != nil {
			t.Fatal(err)
		}
		s.mustControl(catalog.ControlPaused)
		s.drained()
		for _, user := range []string{"per_user_limit", "paused", "cancelled", "paid", "refunded", "duplicate"} {
			if done := s.mustErase(user); done != (Erased{}) {
				t.Errorf("erasure of the unknown buyer %s: %+v", user, done)
			}
		}
		done, err := buyerService(s).EraseBuyer(await.Context(t), "admin", Erasure{Actor: "admin", Reason: "my own"})
		if err != nil || done.Orders != 1 {
			t.Fatalf("%+v, %v", done, err)
		}
		if again := s.mustErase("admin"); again != (Erased{}) {
			t.Errorf("once more: %+v", again)
		}
		entries, _, err := s.store.Audit(await.Context(t), AuditFilter{Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		said := make(map[string]string)
		for _, e := range entries {
			if e.Actor == "admin" {
				t.Errorf("%+v still names the actor", e)
			}
			said[e.Action] = e.Before + " " + e.After
		}
		for action, want := range map[string]string{
			actionItemChange:    `{"per_user_limit":9} {"per_user_limit":5}`,
			actionOrderCancel:   `{"status":"confirmed"} {"reason":"admin","status":"cancelled"}`,
			actionOrderRefund:   `{"status":"paid"} {"restocked":true,"status":"refunded"}`,
			actionPaymentRefund: fmt.Sprintf(`{"outcome":"duplicate","payment":%d} {"outcome":"refunded","payment":%d}`, twice, twice),
			actionItemPause:     `{"control":"open"} {"control":"paused"}`,
		} {
			if said[action] != want {
				t.Errorf("%s: %s, want %s", action, said[action], want)
			}
		}
	})
}

// failsAt is a Renamer whose caller dies before or after the change of the database. after
// runs then.
type failsAt struct {
	*inventory.Inventory
	committed bool
	after     func()
}

func (f failsAt) Rename(ctx context.Context, item string, plan func(context.Context) (inventory.Renaming, error), commit func(context.Context) error) error {
	err := f.Inventory.Rename(ctx, item, plan, func(ctx context.Context) error {
		if f.committed {
			if err := commit(ctx); err != nil {
				return err
			}
		}
		return errTest // the outcome of the change is unknown, as after a death
	})
	f.after()
	return err
}

// TestService_EraseBuyer_GoesOn: an erasure that was interrupted before or after the change
// of the database has lost nothing, and its repeat finishes it.
func TestService_EraseBuyer_GoesOn(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for _, committed := range []bool{false, true} {
			for _, sold := range []bool{false, true} { // between the two attempts
				s := newSite(t, rdb, false, newItem("", 9, 3)).erasing()
				stop := s.work()
				alice := "alice-" + s.item
				o := s.mustPlace(s.purchase(alice, "k", 3, long)).Order
				s.drained()
				failing := buyerService(s)
				failing.Renamer = failsAt{s.stock, committed, func() {}}
				if _, err := failing.EraseBuyer(await.Context(t), alice, erasure); !errors.Is(err, errTest) {
					t.Fatal(err)
				}
				if got := s.traces(alice); len(got) == 0 {
					t.Fatal("the name occurs nowhere")
				}
				want := Ledger{Initial: 9, Left: 6, Sold: 3}
				if sold {
					// The sale is loaded from the database.
					p, err := s.service.Place(await.Context(t), s.purchase(alice, "k", 3, long))
					switch {
					case err != nil:
						t.Error(err)
					case committed:
						want.Left, want.Sold = 3, 6
						if p.Replayed {
							t.Errorf("a new buyer's purchase is answered as a repeat: %+v", p)
						}
					case !p.Replayed || p.Order.ID != o.ID:
						t.Errorf("the repeat got %+v", p)
					}
					s.drained()
				}
				s.mustErase(alice)
				if got := s.traces(alice); len(got) > 0 {
					t.Errorf("committed %v, sold %v: the name still occurs in %v", committed, sold, got)
				}
				if l := ledgerOf(s); l != want {
					t.Errorf("committed %v, sold %v: ledger %+v, want %+v", committed, sold, l, want)
				}
				auditStore(t, s.store)
				stop()
			}
		}
	})
}

// TestService_EraseBuyer_NotLoaded: a sale that is not loaded stays so, and its remaining
// data in Redis does not contain the name.
func TestService_EraseBuyer_NotLoaded(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 9, 3)).erasing()
		s.work()
		alice := "alice-" + s.item
		s.mustPlace(s.purchase(alice, "k", 3, long))
		s.drained()
		if err := inventory.Distrust(await.Context(t), rdb, 1, []string{s.item}); err != nil {
			t.Fatal(err)
		}
		done := s.mustErase(alice)
		if got := s.traces(alice); len(got) > 0 || done.Orders != 1 {
			t.Errorf("erased %+v, the name still occurs in %v", done, got)
		}
		if live, err := s.stock.Live(await.Context(t), s.item); err != nil || live.Loaded {
			t.Errorf("the sale is loaded: %+v, %v", live, err)
		}
		if _, err := s.service.Place(await.Context(t), s.purchase(done.Pseudonym, "x", 1, long)); !errors.Is(err, inventory.ErrUserLimit) {
			t.Errorf("the pseudonym holds nothing: %v", err)
		}
	})
}

// TestService_EraseBuyer_Busy: an erasure that the database refused leaves the sale
// unchanged, loaded and with the old name.
func TestService_EraseBuyer_Busy(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 9, 3)).erasing()
		s.work()
		o := s.mustPlace(s.purchase("alice", "k", 2, long)).Order
		s.drained()
		err := s.store.Writer().Exec(`CREATE TRIGGER refuse BEFORE INSERT ON audit WHEN new.action = 'buyer.erase'
			BEGIN SELECT RAISE(ABORT, 'refused'); END`).Error
		if err != nil {
			t.Fatal(err)
		}
		if _, err := buyerService(s).EraseBuyer(await.Context(t), "alice", erasure); err == nil {
			t.Fatal("erased although the database refused it")
		}
		if live, err := s.stock.Live(await.Context(t), s.item); err != nil || !live.Loaded {
			t.Errorf("the sale: %+v, %v", live, err)
		}
		if again := s.mustPlace(s.purchase("alice", "k", 2, long)); again.Order.ID != o.ID || !again.Replayed {
			t.Errorf("the repeat: %+v", again)
		}
		if _, err := s.service.Place(await.Context(t), s.purchase("alice", "k2", 2, long)); !errors.Is(err, inventory.ErrUserLimit) {
			t.Errorf("above the limit: %v", err)
		}
	})
}

// TestService_EraseBuyer_Selling erases buyers while they and others buy and cancel: the
// ledger always balances, and no unit is lost.
func TestService_EraseBuyer_Selling(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const buyers, rounds = 4, 12
		s := newSite(t, rdb, false, asking("", 1000, 1000, time.Hour)).erasing()
		s.work()
		var selling, looking sync.WaitGroup
		var over atomic.Bool
		for b := range buyers {
			user := fmt.Sprintf("u%d", b)
			selling.Go(func() {
				for k := range rounds {
					p, err := s.service.Place(await.Context(t), s.purchase(user, fmt.Sprintf("k%d", k), 1, long))
					if err != nil {
						t.Errorf("%s: %v", user, err)
						return
					}
					if k%3 == 0 {
						_, err = s.service.Cancel(await.Context(t), p.Order.ID, Canceller{Admin: true})
					}
					if k%4 == 3 {
						_, err = buyerService(s).EraseBuyer(await.Context(t), user, erasure)
					}
					if err != nil && !errors.Is(err, ErrOrdersInFlight) {
						t.Errorf("%s: %v", user, err)
					}
				}
			})
		}
		looking.Go(func() {
			for !over.Load() {
				l, err := s.reconciler().Ledger(await.Context(t), s.item)
				if err != nil || !l.Balanced() {
					t.Errorf("ledger %+v, %v", l, err)
				}
			}
		})
		selling.Wait()
		over.Store(true)
		looking.Wait()
		s.drained()
		erased := 0
		for b := range buyers {
			erased += s.mustErase(fmt.Sprintf("u%d", b)).Orders
		}
		for _, r := range allRows(t, s.store) {
			if !strings.HasPrefix(r.UserID, "erased-") {
				t.Errorf("order %+v", r)
			}
		}
		if l := ledgerOf(s); l != (Ledger{Initial: 1000, Left: 1000 - buyers*rounds*2/3, Held: buyers * rounds * 2 / 3}) {
			t.Errorf("ledger %+v (%d erased at the end)", l, erased)
		}
		auditStore(t, s.store)
	})
}
