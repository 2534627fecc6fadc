package redistest

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
)

// A command whose reply was lost has run once and is not sent again.
func TestClusterOptions_RunsOnce(t *testing.T) {
	t.Parallel()
	s := OwnCluster(t)
	rdb, proxies := s.ProxiedClient(t)
	sure := s.Client(t)
	pipelined := func(pipe redis.Pipeliner) func(context.Context, string) error {
		return func(ctx context.Context, key string) error {
			pipe.Incr(ctx, key)
			_, err := pipe.Exec(ctx)
			return err
		}
	}
	ways := map[string]func(context.Context, string) error{
		"command":     func(ctx context.Context, key string) error { return rdb.Incr(ctx, key).Err() },
		"pipeline":    pipelined(rdb.Pipeline()),
		"transaction": pipelined(rdb.TxPipeline()),
		"script": func(ctx context.Context, key string) error {
			return redis.NewScript(`return redis.call('INCR', KEYS[1])`).Eval(ctx, rdb, []string{key}).Err()
		},
	}
	for name, send := range ways { // sequential: they share the proxies
		t.Run(name, func(t *testing.T) {
			ctx, key := await.Context(t), Prefix(t)+"n"
			// Make the connections first: their handshake needs replies.
			if err := send(ctx, key); err != nil {
				t.Fatal(err)
			}
			for _, p := range proxies {
				p.DropReplies(true)
			}
			sent := make(chan error, 1)
			go func() { sent <- send(ctx, key) }()
			await.True(t, "the server has run it", func() bool { return sure.Get(ctx, key).Val() == "2" })
			for _, p := range proxies {
				p.Sever() // before a reply that is still on its way could pass
				p.DropReplies(false)
			}
			err := <-sent
			if err == nil {
				t.Error("no error, though the reply was lost")
			}
			if lost := (*finalError)(nil); !errors.As(err, &lost) {
				t.Errorf("the error is %v, want that of a lost connection", err)
			}
			if got := sure.Get(ctx, key).Val(); got != "2" {
				t.Errorf("with the first, the command ran %s times, want 2", got)
			}
			// The client continues with new connections once it has detected that all old ones
			// are closed. Until then each of them loses one more command.
			await.True(t, "the client continues", func() bool { return rdb.Incr(ctx, key).Err() == nil })
		})
	}
}

func TestFinalError(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{io.EOF, io.ErrUnexpectedEOF} {
		if err := error(&finalError{cause}); errors.Is(err, cause) {
			t.Errorf("%v shows its cause, after which the client would send again", err)
		}
	}
	reset := error(&finalError{&net.OpError{Op: "read", Err: syscall.ECONNRESET}})
	if !errors.Is(reset, syscall.ECONNRESET) {
		t.Errorf("%v hides its cause", reset)
	}
	if shows := net.Error(nil); errors.As(reset, &shows) {
		t.Errorf("%v is a net.Error, after which the client would send again", reset)
	}
}

// A timeout counts as a lost reply even if the connection is open.
func TestClusterOptions_RunsOnce_Timeout(t *testing.T) {
	t.Parallel()
	s := OwnCluster(t)
	rdb, proxies := s.ProxiedClient(t)
	sure := s.Client(t)
	ctx := await.Context(t)
	await.True(t, "a reply is lost", func() bool {
		key := Prefix(t) + "n"
		if err := rdb.Set(ctx, key, 0, 0).Err(); err != nil {
			t.Fatal(err)
		}
		for _, p := range proxies {
			p.DropReplies(true)
		}
		sent := make(chan error, 1)
		go func() { sent <- rdb.Incr(ctx, key).Err() }()
		await.True(t, "the server has run it", func() bool { return sure.Get(ctx, key).Val() == "1" })
		// From here on a retry would succeed. ReadTimeout ends the wait long before ctx does, so
		// only the options prevent one.
		for _, p := range proxies {
			p.DropReplies(false)
		}
		err := <-sent
		if got := sure.Get(ctx, key).Val(); got != "1" {
			t.Fatalf("the command ran %s times, with the error %v", got, err)
		}
		// On a busy machine the reply may reach the proxy only now, and pass.
		return err != nil
	})
}

// A subscription must distinguish a quiet channel from a lost connection.
func TestClusterOptions_Subscription(t *testing.T) {
	t.Parallel()
	rdb, ctx := Cluster(t), await.Context(t)
	sub := rdb.Subscribe(ctx, Prefix(t)+"c")
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	var quiet net.Error
	if _, err := sub.ReceiveTimeout(ctx, time.Millisecond); !errors.As(err, &quiet) || !quiet.Timeout() {
		t.Errorf("on a quiet channel: %v, want a time-out", err)
	}
}

func TestSubscribes(t *testing.T) {
	t.Parallel()
	for written, want := range map[string]bool{
		"*2\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n":                     true,
		"*2\r\n$10\r\nPSUBSCRIBE\r\n$1\r\nc\r\n":                   true,
		"*2\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n":                   true,
		"*3\r\n$3\r\nset\r\n$9\r\nsubscribe\r\n$1\r\nv\r\n":        false,
		"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$9\r\nsubscribe\r\n":        false,
		"$9\r\n\r\nsubscribe\r\n":                                  false,
		"":                                                         false,
		"*1\r\n$4\r\nping\r\n*2\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n": false,
	} {
		if got := subscribes([]byte(written)); got != want {
			t.Errorf("subscribes(%q) = %v", written, got)
		}
	}
}
