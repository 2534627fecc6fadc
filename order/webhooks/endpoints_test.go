package webhooks

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store/database"
	"flashsale/order/store/storetest"
	"flashsale/webhook"
)

func TestWebhooks_Administration(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	ctx, by := await.Context(t), order.By{Actor: "root", RequestID: "r1"}
	w := &Admin{Store: s, CheckURL: webhook.Policy{}.CheckURL}
	made, secret, err := w.CreateEndpoint(ctx, NewEndpoint{
		URL: "https://a.example/w", Description: "d", Events: []order.EventType{order.EventLate, order.EventPaid},
	}, by)
	at := time.UnixMilli(c.Load()).UTC()
	want := Endpoint{
		ID: made.ID, URL: "https://a.example/w", Description: "d", Events: []order.EventType{order.EventPaid, order.EventLate}, Enabled: true,
		CreatedAt: at, UpdatedAt: at,
	}
	if err != nil || !same(made, want) || !strings.HasPrefix(made.ID, "we_") || len(made.ID) != 35 || !strings.HasPrefix(secret, "whsec_") {
		t.Fatalf("created %+v, %q, %v; want %+v", made, secret, err, want)
	}
	if got, err := w.Endpoint(ctx, made.ID); err != nil || !same(got, want) {
		t.Errorf("read %+v, %v", got, err)
	}
	c.Add(1000)
	url, off := "https://b.example", false
	changed, err := w.ChangeEndpoint(ctx, made.ID, EndpointChange{URL: &url, Events: order.EventTypes, Enabled: &off}, by)
	want.URL, want.Events, want.Enabled, want.UpdatedAt = url, order.EventTypes, false, at.Add(time.Second)
	if err != nil || !same(changed, want) {
		t.Errorf("changed %+v, %v; want %+v", changed, err, want)
	}
	bad := "http://b.example"
	var refused *webhook.URLError
	if _, err := w.ChangeEndpoint(ctx, made.ID, EndpointChange{URL: &bad}, by); !errors.As(err, &refused) {
		t.Errorf("a bad URL: %v", err)
	}
	if _, _, err := w.CreateEndpoint(ctx, NewEndpoint{URL: bad, Events: order.EventTypes}, by); !errors.As(err, &refused) {
		t.Errorf("a bad URL: %v", err)
	}
	if _, err := w.TestEndpoint(ctx, made.ID, by); !errors.Is(err, ErrEndpointDisabled) {
		t.Errorf("test of a disabled endpoint: %v", err)
	}
	if err := w.DeleteEndpoint(ctx, made.ID, by); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"get":       second(w.Endpoint(ctx, made.ID)),
		"change":    second(w.ChangeEndpoint(ctx, made.ID, EndpointChange{Enabled: &off}, by)),
		"delete":    w.DeleteEndpoint(ctx, made.ID, by),
		"test":      second(w.TestEndpoint(ctx, made.ID, by)),
		"redeliver": w.Redeliver(ctx, made.ID, "msg_1", by),
	} {
		if !errors.Is(err, ErrEndpointNotFound) {
			t.Errorf("%s of a deleted endpoint: %v", name, err)
		}
	}
	if _, _, err := w.RotateSecret(ctx, made.ID, by); !errors.Is(err, ErrEndpointNotFound) {
		t.Errorf("rotation of a deleted endpoint: %v", err)
	}
	if _, _, err := w.Deliveries(ctx, DeliveryFilter{EndpointID: made.ID, Limit: 1}); !errors.Is(err, ErrEndpointNotFound) {
		t.Errorf("deliveries of a deleted endpoint: %v", err)
	}
	if list, err := w.Endpoints(ctx); err != nil || len(list) != 0 {
		t.Errorf("list %+v, %v", list, err)
	}
	if got := auditOf(t, s); !slices.Equal(got, []string{"root webhook.create", "root webhook.change", "root webhook.delete"}) {
		t.Errorf("audit %q", got)
	}
	var notes []struct{ Before, After, RequestID string }
	if err := s.Reader().Raw("SELECT before, after, request_id FROM audit ORDER BY id").Scan(&notes).Error; err != nil {
		t.Fatal(err)
	}
	if notes[0].Before != "" || notes[0].After != notes[1].Before || notes[1].After != notes[2].Before || notes[2].After != "" ||
		!strings.Contains(notes[1].After, `"enabled":false`) || notes[2].RequestID != "r1" {
		t.Errorf("audit %+v", notes)
	}
	// Its secrets are deleted, too.
	var left string
	if err := s.Reader().Raw("SELECT secret || old_secret FROM webhook_endpoints").Scan(&left).Error; err != nil || left != "" {
		t.Errorf("secrets of a deleted endpoint: %q, %v", left, err)
	}
}

func second[T any](_ T, err error) error { return err }

func same(a, b Endpoint) bool {
	events := slices.Equal(a.Events, b.Events)
	a.Events, b.Events = nil, nil
	return events && a.ID == b.ID && a.URL == b.URL && a.Description == b.Description && a.Enabled == b.Enabled &&
		a.DisabledReason == b.DisabledReason && a.CreatedAt.Equal(b.CreatedAt) && a.UpdatedAt.Equal(b.UpdatedAt)
}

// TestWebhooks_Limit: concurrent calls do not exceed the limit.
func TestWebhooks_Limit(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	w := &Admin{Store: s, CheckURL: webhook.Policy{}.CheckURL}
	const extra = 7
	var made, refused atomic.Int64
	var all sync.WaitGroup
	for range maxEndpoints + extra {
		all.Go(func() {
			_, _, err := w.CreateEndpoint(await.Context(t), NewEndpoint{URL: "https://a.example", Events: order.EventTypes}, order.By{})
			switch {
			case err == nil:
				made.Add(1)
			case errors.Is(err, ErrEndpointLimit):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	list, err := w.Endpoints(await.Context(t))
	if err != nil || len(list) != maxEndpoints || made.Load() != maxEndpoints || refused.Load() != extra {
		t.Errorf("%d endpoints, %d made, %d refused, %v", len(list), made.Load(), refused.Load(), err)
	}
	if err := w.DeleteEndpoint(await.Context(t), list[0].ID, order.By{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.CreateEndpoint(await.Context(t), NewEndpoint{URL: "https://a.example", Events: order.EventTypes}, order.By{}); err != nil {
		t.Errorf("in the place of a deleted one: %v", err)
	}
}

// TestWebhooks_Deliveries lists by pages and states.
func TestWebhooks_Deliveries(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 100, 1))
	w := &Admin{Store: s, CheckURL: webhook.Policy{}.CheckURL}
	e, _ := addHook(t, s, "https://a.example")
	addHook(t, s, "https://b.example")
	storetest.MustCommit(t, s, ordertest.Distinct("n", "item", 10)...)
	test, err := w.TestEndpoint(await.Context(t), e.ID, order.By{Actor: "root", RequestID: "r"})
	if err != nil {
		t.Fatal(err)
	}
	set := func(state DeliveryState, seqs ...int64) {
		t.Helper()
		if err := s.Writer().Exec("UPDATE webhook_deliveries SET state = ? WHERE endpoint_id = ? AND event_seq IN ?", string(state), e.ID, seqs).Error; err != nil {
			t.Fatal(err)
		}
	}
	set(DeliveryDead, 2, 5, 9)
	set(DeliveryDelivered, 3, 4)
	for state, want := range map[DeliveryState][]int64{
		"": {11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, DeliveryDead: {9, 5, 2}, DeliveryDelivered: {4, 3}, DeliveryPending: {11, 10, 8, 7, 6, 1},
	} {
		for _, size := range []int{1, 2, 3, 100} {
			f := DeliveryFilter{EndpointID: e.ID, State: state, Limit: size}
			var got []int64
			for more := true; more; more = f.Before > 0 {
				page, next, err := w.Deliveries(await.Context(t), f)
				if err != nil || len(page) == 0 || len(page) > size {
					t.Fatalf("%+v: %d, %v", f, len(page), err)
				}
				f.Before = next
				for _, d := range page {
					got = append(got, d.Position)
					if (d.Type == order.EventTest) != (d.EventID == test) || state != "" && d.State != state || d.NextAt.IsZero() == (d.State == DeliveryPending) {
						t.Errorf("delivery %+v", d)
					}
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s by %d: %v, want %v", state, size, got, want)
			}
		}
	}
	if err := w.Redeliver(await.Context(t), e.ID, "msg_none", order.By{}); !errors.Is(err, ErrDeliveryNotFound) {
		t.Errorf("redelivery of an unknown event: %v", err)
	}
}

// TestWebhooks_Unread: a database that does not answer in time gives ErrUnavailable.
func TestWebhooks_Unread(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	_, all := endpoints(ctx, s)
	_, one := endpoint(ctx, s, "e")
	_, found := due(ctx, s, 1)
	_, read := job(ctx, s, deliveryKey{"e", 1})
	_, state := outboxState(ctx, s)
	for name, err := range map[string]error{"endpoints": all, "an endpoint": one, "due deliveries": found, "a delivery": read, "the outbox": state} {
		if !errors.Is(err, database.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", name, err)
		}
	}
}
