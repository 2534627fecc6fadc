//go:build unix

package checkout

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/subscription"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store/storetest"
)

// TestWaiters_Listen_Silent: a connection that dies silently is detected by a timeout, and
// replaced.
func TestWaiters_Listen_Silent(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	defer rdb.Close()
	w := NewWaiters()
	heard := make(chan error, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- w.Listen(ctx, rdb, storetest.New(t), func(err error) {
			select {
			case heard <- err:
			default:
			}
		})
	}()
	subscribed := func() bool {
		n, err := rdb.PubSubNumSub(ctx, order.ChannelOf(w.Origin())).Result()
		return err == nil && n[order.ChannelOf(w.Origin())] == 1
	}
	await.True(t, "the subscription", subscribed)
	process, err := os.FindProcess(server.Pid())
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-heard:
		if !errors.Is(err, subscription.ErrSilent) {
			t.Errorf("reported %v, want ErrSilent", err)
		}
	case <-time.After(ordertest.Limit):
		t.Error("the silence was not noticed")
	}
	if err := process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// The server still counts the old subscription for a while, so only a notice that
	// arrives proves the new one.
	tk := NewTicket(w, "x")
	n := order.Notice{ID: "x", Outcome: order.Outcome{Status: order.StatusConfirmed}}
	await.True(t, "a notice over the new subscription", func() bool {
		if err := rdb.Publish(ctx, order.ChannelOf(w.Origin()), order.AppendNotice(nil, &n)).Err(); err != nil {
			t.Fatal(err)
		}
		return len(tk.settled) == 1
	})
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("listen ended with %v", err)
	}
}
