package inventory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestRelease_WrongTypes: a key of another type, or a value that is not a number, fails the
// script before its first write.
func TestRelease_WrongTypes(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		k := keys{1}
		type strike struct {
			key   func(item string) string
			field string // "": the key becomes a string
		}
		for name, c := range map[string]strike{
			"sale":        {key: k.sale},
			"idempotency": {key: k.idempotency},
			"buyers":      {key: k.buyers},
			"left":        {k.sale, "left"},
			"version":     {k.sale, "version"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newShop(t, rdb, open(1, 1), 0)
				v := s.inventory(t, Config{})
				r := s.request("u", "k", 1)
				mustBuy(t, v, r)
				ctx, key := await.Context(t), c.key(s.item)
				var err error
				if c.field == "" {
					err = errors.Join(rdb.Del(ctx, key).Err(), rdb.Set(ctx, key, "x", 0).Err())
				} else {
					err = rdb.HSet(ctx, key, c.field, "many").Err()
				}
				if err != nil {
					t.Fatal(err)
				}
				before := contents(t, s)
				status, _, err := Release(ctx, rdb, 1, 1, s.item, released(r))
				var refused redis.Error
				if !errors.As(err, &refused) || status[0] != ReleaseUnknown {
					t.Errorf("released with %v, %v; want the script's error", status, err)
				}
				if after := contents(t, s); !maps.Equal(before, after) {
					t.Errorf("a failed script changed %v to %v", before, after)
				}
			})
		}
	})
}

// contents reads an item's keys, of whatever type.
func contents(t testing.TB, s *shop) map[string]string {
	t.Helper()
	out, ctx, k := map[string]string{}, await.Context(t), keys{1}
	for _, key := range []string{k.sale(s.item), k.idempotency(s.item), k.buyers(s.item)} {
		kind, err := s.rdb.Type(ctx, key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if kind == "none" {
			continue
		}
		if kind != "hash" {
			text, err := s.rdb.Get(ctx, key).Result()
			if err != nil {
				t.Fatal(err)
			}
			out[key] = text
			continue
		}
		fields, err := s.rdb.HGetAll(ctx, key).Result()
		if err != nil {
			t.Fatal(err)
		}
		for f, value := range fields {
			out[key+" "+f] = value
		}
	}
	return out
}

func TestRelease_Errors(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 5), 0)
		v := s.inventory(t, Config{})
		r := s.request("u", "k", 1)
		mustBuy(t, v, r)
		before := s.state(t)
		for _, n := range []int64{0, -1} {
			bad := released(r, r)
			bad[1].Quantity = n
			status, _, err := Release(await.Context(t), rdb, 1, 1, s.item, bad)
			if !errors.Is(err, ErrQuantity) {
				t.Errorf("quantity %d: %v, want ErrQuantity", n, err)
			}
			wantStatus(t, status, ReleaseUnknown, ReleaseUnknown)
		}
		same(t, before, s.state(t))
	})
}

// TestRelease_ReplyLost: the script ran and its reply was lost. The repeat returns that, and
// releases the orders that were not sent.
func TestRelease_ReplyLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, direct *redis.Client) {
		const orders = releasePage + 20
		s := newShop(t, direct, open(orders, 1), 0)
		var requests []*Request
		for i := range orders {
			r := s.request(fmt.Sprintf("u%d", i), "k", 1)
			requests = append(requests, r)
			s.source.past[s.item] = append(s.source.past[s.item], Holding{
				Buyer: r.Buyer, IdempotencyKey: "k", OrderID: r.OrderID, Quantity: 1, Counts: true,
			})
		}
		if err := s.inventory(t, Config{}).Open(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		if err := releaseScript.Load(await.Context(t), direct).Err(); err != nil {
			t.Fatal(err)
		}
		p := newProxy(t, direct.Options().Addr, runsOf(releaseScript, 1, func(int) cutAt { return cutAfter }))
		status, _, err := Release(await.Context(t), p.client(t), 1, 1, s.item, released(requests...))
		if err == nil || p.count() != 1 {
			t.Errorf("%v after %d cuts, want an error after one", err, p.count())
		}
		wantStatus(t, status, slices.Repeat([]ReleaseStatus{ReleaseUnknown}, orders)...)
		want := slices.Repeat([]ReleaseStatus{ReleaseRepeated}, releasePage)
		wantStatus(t, s.give(t, requests...), append(want, slices.Repeat([]ReleaseStatus{ReleaseDone}, 20)...)...)
		if st := s.state(t); st.left(t) != orders {
			t.Errorf("left is %d, want %d", st.left(t), orders)
		}
	})
}

// dropAfter drops a sale once, after a release script has run.
type dropAfter struct {
	drop func()
	once *sync.Once
}

func (d dropAfter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d dropAfter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (d dropAfter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); err == nil && cmd.Name() == "evalsha" && args[1] == releaseScript.Hash() {
			d.once.Do(d.drop)
		}
		return err
	}
}

// TestRelease_DroppedBetweenPages: the sequence of the first script is returned, although the
// sale is gone when the second one runs.
func TestRelease_DroppedBetweenPages(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, direct *redis.Client) {
		const orders = releasePage + 1
		s := newShop(t, direct, open(orders, 1), 0)
		var requests []*Request
		for i := range orders {
			r := s.request(fmt.Sprintf("u%d", i), "k", 1)
			requests = append(requests, r)
			s.source.past[s.item] = append(s.source.past[s.item], Holding{
				Buyer: r.Buyer, IdempotencyKey: "k", OrderID: r.OrderID, Quantity: 1, Counts: true,
			})
		}
		v := s.inventory(t, Config{})
		if err := v.Open(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		if err := releaseScript.Load(await.Context(t), direct).Err(); err != nil {
			t.Fatal(err)
		}
		rdb := redistest.Second(t, direct)
		rdb.AddHook(dropAfter{once: new(sync.Once), drop: func() {
			if err := direct.Del(await.Context(t), v.keys.sale(s.item)).Err(); err != nil {
				t.Error(err)
			}
		}})
		status, sequence, err := Release(await.Context(t), rdb, 1, 1, s.item, released(requests...))
		if err != nil || sequence == 0 || status[0] != ReleaseDone || status[releasePage] == ReleaseDone {
			t.Errorf("sequence %d, %c and %c, %v", sequence, status[0], status[releasePage], err)
		}
	})
}

func TestReleaseStatus(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for st, settled := range map[ReleaseStatus]bool{
		ReleaseUnknown: false, ReleaseDone: true, ReleaseRepeated: true, ReleaseNotNeeded: true, ReleaseNotLoaded: false, ReleaseForeign: false, 'z': false,
	} {
		if st.Settled() != settled {
			t.Errorf("%v settled: %v", st, !settled)
		}
		if seen[st.String()] {
			t.Errorf("%v names two", st)
		}
		seen[st.String()] = true
	}
}
