package privacy

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
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/payments"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/shoptest"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/queue"
)

// erasure is the erasure of the tests.
var erasure = Erasure{Actor: "root", Reason: "asked for by letter 7", RequestID: "req-1"}

// newService erases and exports the buyers of a site.
func newService(s *shoptest.Shop) *Service {
	return &Service{Store: s.Store, Tasks: []order.Queued{accepted.NewOrders(s.Queue)}, Queued: accepted.NewIndex(s.Rdb, s.Queue), Renamer: s.Stock}
}

// erasing lets the site list queued orders, and notify those who follow orders.
func erasing(s *shoptest.Shop) *shoptest.Shop {
	s.Service.Queued = accepted.NewIndex(s.Rdb, s.Queue)
	s.Service.ChangeNotifier = checkout.NewChangeNotifier(s.Rdb, s.CollectError)
	return s
}

func mustErase(s *shoptest.Shop, user string) Erased {
	s.T.Helper()
	done, err := newService(s).EraseBuyer(await.Context(s.T), user, erasure)
	if err != nil {
		s.T.Fatal(err)
	}
	return done
}

// traces lists where a name occurs: in any column of the database, in any byte of SQLite's
// files, and in any key or value of Redis.
func traces(s *shoptest.Shop, name string) []string {
	s.T.Helper()
	ctx := await.Context(s.T)
	var found []string
	var tables []string
	names := "SELECT name FROM sqlite_master WHERE type = 'table'"
	files := []string{s.Store.Path(), s.Store.Path() + "-wal"}
	if s.Store.Postgres() {
		// The server keeps old versions of rows for a while; see docs/privacy.md.
		names, files = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()", nil
	}
	if err := s.Store.Reader().Raw(names).Scan(&tables).Error; err != nil {
		s.T.Fatal(err)
	}
	for _, table := range tables {
		var rows []map[string]any
		if err := s.Store.Reader().WithContext(ctx).Raw("SELECT * FROM " + table).Scan(&rows).Error; err != nil {
			s.T.Fatal(err)
		}
		if strings.Contains(fmt.Sprint(rows), name) {
			found = append(found, "table "+table)
		}
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			s.T.Fatal(err)
		}
		if bytes.Contains(raw, []byte(name)) {
			found = append(found, "file "+file)
		}
	}
	keys, err := s.Rdb.Keys(ctx, "*").Result()
	if err != nil {
		s.T.Fatal(err)
	}
	for _, key := range keys {
		var value any
		switch kind := s.Rdb.Type(ctx, key).Val(); kind {
		case "string":
			value = s.Rdb.Get(ctx, key).Val()
		case "hash":
			value = s.Rdb.HGetAll(ctx, key).Val()
		case "zset":
			value = s.Rdb.ZRange(ctx, key, 0, -1).Val()
		case "list":
			value = s.Rdb.LRange(ctx, key, 0, -1).Val()
		case "stream":
			value = s.Rdb.XRange(ctx, key, "-", "+").Val()
		case "none": // a key of another test, deleted meanwhile
		default:
			s.T.Fatalf("key %s is a %s, which this test cannot read", key, kind)
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
		s := erasing(shoptest.New(t, rdb, false, ordertest.Asking("", 20, 4, time.Hour)))
		stop := s.Work()
		alice, bob := "alice-"+s.Item, "bob-"+s.Item
		paid := s.MustPlace(s.Purchase(alice, alice+"@mail-1", 1, ordertest.Long)).Order
		held := s.MustPlace(s.Purchase(alice, alice+"@mail-2", 2, ordertest.Long)).Order
		gone := s.MustPlace(s.Purchase(alice, alice+"@mail-3", 1, ordertest.Long)).Order
		bobs := s.MustPlace(s.Purchase(bob, "b", 4, ordertest.Long)).Order
		s.Drained()
		refused := ordertest.Bought("refused-"+s.Item, s.Item, alice, alice+"@mail-4", 9)
		storetest.MustCommit(t, s.Store, refused)
		if _, err := s.Service.Pay(await.Context(t), paid.ID, ordertest.Money("psp-9", 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Service.Cancel(await.Context(t), gone.ID, order.Canceller{UserID: alice}); err != nil {
			t.Fatal(err)
		}
		addAuditEntries(t, s, alice, bob)
		before := reconciletest.LedgerOf(s)
		if got := traces(s, alice); len(got) < 4 {
			t.Fatalf("before the erasure the name occurs only in %v", got)
		}
		done := mustErase(s, alice)
		if done.Orders != 4 || !strings.HasPrefix(done.Pseudonym, "erased-") {
			t.Errorf("erased: %+v", done)
		}
		if got := traces(s, alice); len(got) > 0 {
			t.Errorf("the name still occurs in %v", got)
		}
		if l := reconciletest.LedgerOf(s); l != before {
			t.Errorf("ledger %+v, before %+v", l, before)
		}
		ordertest.AuditStore(t, s.Store)
		rows := ordertest.AllRows(t, s.Store)
		for _, id := range []string{paid.ID, held.ID, gone.ID, refused.ID} {
			if r := rows[id]; r.UserID != done.Pseudonym || r.IdempotencyKey != id {
				t.Errorf("order %+v", r)
			}
		}
		if r := rows[paid.ID]; r.PaymentReference != "psp-9" || ordertest.PaymentsOf(t, s.Store)["psp-9"] != paid.ID+" accepted" {
			t.Errorf("the payment: %+v", r)
		}
		if r := rows[bobs.ID]; r.UserID != bob || r.IdempotencyKey != "b" {
			t.Errorf("another's order: %+v", r)
		}
		checkErasureAudit(t, s, done.Pseudonym, bob)
		// A repeat finds nothing, and writes nothing.
		if again := mustErase(s, alice); again != (Erased{}) {
			t.Errorf("once more: %+v", again)
		}
		// The limits still apply, a repeat is recognized, and the pseudonym's order can
		// end.
		if _, err := s.Service.Place(await.Context(t), s.Purchase(bob, "b2", 1, ordertest.Long)); !errors.Is(err, inventory.ErrUserLimit) {
			t.Errorf("bob above his limit: %v", err)
		}
		if again := s.MustPlace(s.Purchase(bob, "b", 4, ordertest.Long)); again.Order.ID != bobs.ID || !again.Replayed {
			t.Errorf("bob repeats: %+v", again)
		}
		if _, err := s.Service.Place(await.Context(t), s.Purchase(done.Pseudonym, "x", 2, ordertest.Long)); !errors.Is(err, inventory.ErrUserLimit) {
			t.Errorf("the pseudonym holds nothing: %v", err)
		}
		if _, err := s.Service.Cancel(await.Context(t), held.ID, order.Canceller{Admin: true}); err != nil {
			t.Fatal(err)
		}
		if l := reconciletest.LedgerOf(s); l.Left != before.Left+2 || l.Held != before.Held-2 || len(ordertest.ReleasesOf(t, s.Store)) != 0 {
			t.Errorf("after the cancellation %+v, before %+v, pending releases %v", l, before, ordertest.ReleasesOf(t, s.Store))
		}
		// The same user is a new buyer now.
		if p := s.MustPlace(s.Purchase(alice, alice+"@mail-1", 4, ordertest.Long)); p.Replayed {
			t.Errorf("a new purchase: %+v", p)
		}
		s.Drained()
		stop()
		ordertest.AuditStore(t, s.Store)
	})
}

// TestService_EraseBuyer_InFlight: while a purchase of the buyer is in the queue,
// dead letters included, nothing is erased.
func TestService_EraseBuyer_InFlight(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := erasing(shoptest.New(t, rdb, false, ordertest.NewItem("", 9, 9)))
		storetest.MustCommit(t, s.Store, ordertest.Bought("done-"+s.Item, s.Item, "alice", "k0", 1))
		queued := s.MustPlace(s.Purchase("alice", "k1", 1, 0)).Order
		refuse := func(when string) {
			t.Helper()
			if _, err := newService(s).EraseBuyer(await.Context(t), "alice", erasure); !errors.Is(err, ErrOrdersInFlight) {
				t.Errorf("%s: %v", when, err)
			}
			if r := ordertest.AllRows(t, s.Store)["done-"+s.Item]; r.UserID != "alice" || r.IdempotencyKey != "k0" {
				t.Errorf("%s: %+v", when, r)
			}
		}
		refuse("ready")
		f, err := s.Queue.Dequeue(await.Context(t), 1)
		if err != nil || len(f.Tasks) != 1 {
			t.Fatal(f, err)
		}
		refuse("leased")
		if _, err := s.Queue.Reject(await.Context(t), queue.Rejection{Task: f.Tasks[0], Dead: true}); err != nil {
			t.Fatal(err)
		}
		refuse("dead")
		// A purchase between the first check and the lock is found under the lock.
		late := newService(s)
		late.Queued = &blindOnce{BuyersQueued: late.Queued}
		if _, err := late.EraseBuyer(await.Context(t), "alice", erasure); !errors.Is(err, ErrOrdersInFlight) {
			t.Errorf("between the checks: %v", err)
		}
		late.Queued = laterPage{newService(s).Queued}
		if _, err := late.EraseBuyer(await.Context(t), "alice", erasure); !errors.Is(err, ErrOrdersInFlight) {
			t.Errorf("on a later page: %v", err)
		}
		if _, err := s.Queue.RunNow(await.Context(t), time.Time{}, ordertest.TaskOf(t, s.Queue, queued.ID)); err != nil {
			t.Fatal(err)
		}
		s.Work()
		s.Drained()
		if done := mustErase(s, "alice"); done.Orders != 2 {
			t.Errorf("erased: %+v", done)
		}
		reconciletest.LedgerOf(s)
		late.Queued = unreadable{}
		if _, err := late.EraseBuyer(await.Context(t), "alice", erasure); !errors.Is(err, inventory.ErrUnavailable) {
			t.Errorf("with the queue down: %v", err)
		}
	})
}

// blindOnce is a log of queued orders that is empty at the first read.
type blindOnce struct {
	order.BuyersQueued
	looked bool
}

func (b *blindOnce) Orders(ctx context.Context, buyer, before string, limit int, fn func(accepted.Order) bool) (string, error) {
	if !b.looked {
		b.looked = true
		return "", nil
	}
	return b.BuyersQueued.Orders(ctx, buyer, before, limit, fn)
}

// laterPage is a log of queued orders whose first page has none of the buyer's.
type laterPage struct{ order.BuyersQueued }

func (l laterPage) Orders(ctx context.Context, buyer, before string, limit int, fn func(accepted.Order) bool) (string, error) {
	if before == "" {
		return "later", nil
	}
	return l.BuyersQueued.Orders(ctx, buyer, "", limit, fn)
}

// unreadable is a log of queued orders that cannot be read.
type unreadable struct{}

func (unreadable) Orders(context.Context, string, string, int, func(accepted.Order) bool) (string, error) {
	return "", inventory.ErrUnavailable
}

// TestService_EraseBuyer_Releases: releases that were pending during the erasure are made
// once, even by a process that still uses the old name.
func TestService_EraseBuyer_Releases(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := erasing(shoptest.New(t, rdb, false, ordertest.NewItem("", 9, 9)))
		s.Work()
		alice := "alice-" + s.Item
		o := s.MustPlace(s.Purchase(alice, "k", 3, ordertest.Long)).Order
		s.Drained()
		_, pending, err := s.Store.Cancel(await.Context(t), o.ID, order.Canceller{UserID: alice})
		if err != nil || len(pending) != 1 {
			t.Fatal(pending, err)
		}
		done := mustErase(s, alice)
		if got := traces(s, alice); len(got) > 0 {
			t.Errorf("the name still occurs in %v", got)
		}
		if pending := ordertest.ReleasesOf(t, s.Store); len(pending) != 1 {
			t.Errorf("pending releases: %v", pending)
		}
		want := order.Ledger{Initial: 9, Left: 9}
		if l := reconciletest.LedgerOf(s); l != want {
			t.Errorf("ledger %+v", l)
		}
		// A process that read the pending releases before the erasure.
		if waiting, failed := s.Service.Releaser.Release(await.Context(t), pending); len(waiting) != 1 || len(failed) != 0 {
			t.Errorf("under the old name: waiting %v, failed %v", waiting, failed)
		}
		if l := reconciletest.LedgerOf(s); l != want {
			t.Errorf("ledger %+v", l)
		}
		// The buyer buys again with the old key, which now belongs to a new order.
		s.MustPlace(s.Purchase(alice, "k", 2, ordertest.Long))
		s.Drained()
		s.Service.Releaser.Release(await.Context(t), pending)
		want = order.Ledger{Initial: 9, Left: 7, Sold: 2}
		if l := reconciletest.LedgerOf(s); l != want {
			t.Errorf("ledger %+v", l)
		}
		storetest.SetClock(s.Store).Add(2 * worker.SweepGrace.Milliseconds())
		if _, err := worker.NewSweeper(s.Fulfiller, worker.SweeperConfig{Dead: []worker.DeadLetters{s.Queue}}).Sweep(await.Context(t)); err != nil {
			t.Error(err)
		}
		if l := reconciletest.LedgerOf(s); l != want || len(ordertest.ReleasesOf(t, s.Store)) != 0 {
			t.Errorf("ledger %+v, pending releases %v", l, ordertest.ReleasesOf(t, s.Store))
		}
		if r := ordertest.AllRows(t, s.Store)[o.ID]; r.UserID != done.Pseudonym {
			t.Errorf("order %+v", r)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// TestService_EraseBuyer_Audit: a buyer may have the name of a field or value of the
// service, which stays; and a buyer may be an admin, whose own erasure leaves no name
// either.
func TestService_EraseBuyer_Audit(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := erasing(shoptest.New(t, rdb, false, ordertest.NewItem("", 9, 9)))
		s.Work()
		admin := order.By{Actor: "admin"}
		if _, err := s.Sales.ChangeItem(await.Context(t), s.Item, items.Change{PerUserLimit: ordertest.Ptr[int64](5)}, admin); err != nil {
			t.Fatal(err)
		}
		o := s.MustPlace(s.Purchase("admin", "k", 1, ordertest.Long)).Order
		if _, err := s.Service.Cancel(await.Context(t), o.ID, order.Canceller{Admin: true, UserID: "admin"}); err != nil {
			t.Fatal(err)
		}
		// A refunded order and a refunded payment, of a buyer who stays.
		refunded := s.MustPay("carol", "k", 1)
		if _, err := s.Service.Pay(await.Context(t), refunded.ID, ordertest.Money("twice-"+s.Item, 1)); !errors.Is(err, order.ErrOrderFinal) {
			t.Fatal(err)
		}
		twice := ordertest.PaymentIDs(t, s.Store)["twice-"+s.Item]
		if _, err := (&payments.Service{Store: s.Store}).MarkRefunded(await.Context(t), twice, admin); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Service.Refund(await.Context(t), refunded.ID, checkout.Refund{Restock: true, By: admin}); err != nil {
			t.Fatal(err)
		}
		s.MustControl(catalog.ControlPaused)
		s.Drained()
		for _, user := range []string{"per_user_limit", "paused", "cancelled", "paid", "refunded", "duplicate"} {
			if done := mustErase(s, user); done != (Erased{}) {
				t.Errorf("erasure of the unknown buyer %s: %+v", user, done)
			}
		}
		done, err := newService(s).EraseBuyer(await.Context(t), "admin", Erasure{Actor: "admin", Reason: "my own"})
		if err != nil || done.Orders != 1 {
			t.Fatalf("%+v, %v", done, err)
		}
		if again := mustErase(s, "admin"); again != (Erased{}) {
			t.Errorf("once more: %+v", again)
		}
		entries, _, err := s.Store.Audit(await.Context(t), order.AuditFilter{Limit: 100})
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
			order.ActionItemChange:    `{"per_user_limit":9} {"per_user_limit":5}`,
			order.ActionOrderCancel:   `{"status":"confirmed"} {"reason":"admin","status":"cancelled"}`,
			order.ActionOrderRefund:   `{"status":"paid"} {"restocked":true,"status":"refunded"}`,
			order.ActionPaymentRefund: fmt.Sprintf(`{"outcome":"duplicate","payment":%d} {"outcome":"refunded","payment":%d}`, twice, twice),
			order.ActionItemPause:     `{"control":"open"} {"control":"paused"}`,
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
		return ordertest.ErrTest // the outcome of the change is unknown, as after a death
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
				s := erasing(shoptest.New(t, rdb, false, ordertest.NewItem("", 9, 3)))
				stop := s.Work()
				alice := "alice-" + s.Item
				o := s.MustPlace(s.Purchase(alice, "k", 3, ordertest.Long)).Order
				s.Drained()
				failing := newService(s)
				failing.Renamer = failsAt{s.Stock, committed, func() {}}
				if _, err := failing.EraseBuyer(await.Context(t), alice, erasure); !errors.Is(err, ordertest.ErrTest) {
					t.Fatal(err)
				}
				// Once it is committed, the name is only in SQLite's log.
				if got := traces(s, alice); len(got) == 0 && !(committed && s.Store.Postgres()) {
					t.Fatal("the name occurs nowhere")
				}
				want := order.Ledger{Initial: 9, Left: 6, Sold: 3}
				if sold {
					// The sale is loaded from the database.
					p, err := s.Service.Place(await.Context(t), s.Purchase(alice, "k", 3, ordertest.Long))
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
					s.Drained()
				}
				mustErase(s, alice)
				if got := traces(s, alice); len(got) > 0 {
					t.Errorf("committed %v, sold %v: the name still occurs in %v", committed, sold, got)
				}
				if l := reconciletest.LedgerOf(s); l != want {
					t.Errorf("committed %v, sold %v: ledger %+v, want %+v", committed, sold, l, want)
				}
				ordertest.AuditStore(t, s.Store)
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
		s := erasing(shoptest.New(t, rdb, false, ordertest.NewItem("", 9, 3)))
		s.Work()
		alice := "alice-" + s.Item
		s.MustPlace(s.Purchase(alice, "k", 3, ordertest.Long))
		s.Drained()
		if err := inventory.Invalidate(await.Context(t), rdb, 1, []string{s.Item}); err != nil {
			t.Fatal(err)
		}
		done := mustErase(s, alice)
		if got := traces(s, alice); len(got) > 0 || done.Orders != 1 {
			t.Errorf("erased %+v, the name still occurs in %v", done, got)
		}
		if live, err := s.Stock.Live(await.Context(t), s.Item); err != nil || live.Loaded {
			t.Errorf("the sale is loaded: %+v, %v", live, err)
		}
		if _, err := s.Service.Place(await.Context(t), s.Purchase(done.Pseudonym, "x", 1, ordertest.Long)); !errors.Is(err, inventory.ErrUserLimit) {
			t.Errorf("the pseudonym holds nothing: %v", err)
		}
	})
}

// TestService_EraseBuyer_Busy: an erasure that the database refused leaves the sale
// unchanged, loaded and with the old name.
func TestService_EraseBuyer_Busy(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := erasing(shoptest.New(t, rdb, false, ordertest.NewItem("", 9, 3)))
		s.Work()
		o := s.MustPlace(s.Purchase("alice", "k", 2, ordertest.Long)).Order
		s.Drained()
		ordertest.Refuse(t, s.Store, "INSERT", "audit", "new.action = 'buyer.erase'")
		if _, err := newService(s).EraseBuyer(await.Context(t), "alice", erasure); err == nil {
			t.Fatal("erased although the database refused it")
		}
		if live, err := s.Stock.Live(await.Context(t), s.Item); err != nil || !live.Loaded {
			t.Errorf("the sale: %+v, %v", live, err)
		}
		if again := s.MustPlace(s.Purchase("alice", "k", 2, ordertest.Long)); again.Order.ID != o.ID || !again.Replayed {
			t.Errorf("the repeat: %+v", again)
		}
		if _, err := s.Service.Place(await.Context(t), s.Purchase("alice", "k2", 2, ordertest.Long)); !errors.Is(err, inventory.ErrUserLimit) {
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
		s := erasing(shoptest.New(t, rdb, false, ordertest.Asking("", 1000, 1000, time.Hour)))
		s.Work()
		var selling, looking sync.WaitGroup
		var over atomic.Bool
		for b := range buyers {
			user := fmt.Sprintf("u%d", b)
			selling.Go(func() {
				for k := range rounds {
					p, err := s.Service.Place(await.Context(t), s.Purchase(user, fmt.Sprintf("k%d", k), 1, ordertest.Long))
					if err != nil {
						t.Errorf("%s: %v", user, err)
						return
					}
					if k%3 == 0 {
						_, err = s.Service.Cancel(await.Context(t), p.Order.ID, order.Canceller{Admin: true})
					}
					if k%4 == 3 {
						_, err = newService(s).EraseBuyer(await.Context(t), user, erasure)
					}
					if err != nil && !errors.Is(err, ErrOrdersInFlight) {
						t.Errorf("%s: %v", user, err)
					}
				}
			})
		}
		looking.Go(func() {
			for !over.Load() {
				l, err := reconciletest.New(s).Ledger(await.Context(t), s.Item)
				if err != nil || !l.Balanced() {
					t.Errorf("ledger %+v, %v", l, err)
				}
			}
		})
		selling.Wait()
		over.Store(true)
		looking.Wait()
		s.Drained()
		erased := 0
		for b := range buyers {
			erased += mustErase(s, fmt.Sprintf("u%d", b)).Orders
		}
		for _, r := range ordertest.AllRows(t, s.Store) {
			if !strings.HasPrefix(r.UserID, "erased-") {
				t.Errorf("order %+v", r)
			}
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 1000, Left: 1000 - buyers*rounds*2/3, Held: buyers * rounds * 2 / 3}) {
			t.Errorf("ledger %+v (%d erased at the end)", l, erased)
		}
		ordertest.AuditStore(t, s.Store)
	})
}
