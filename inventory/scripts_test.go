package inventory

import (
	"errors"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// refusingServer returns the address of a server that answers everything as Redis answers a wrong password.
func refusingServer(t *testing.T) string {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(await.Context(t), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ln.Close(); err != nil {
			t.Error(err)
		}
	})
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer c.Close()
				b := make([]byte, 4096)
				for {
					if _, err := c.Read(b); err != nil {
						return
					}
					if _, err := c.Write([]byte("-WRONGPASS invalid username-password pair\r\n")); err != nil {
						return
					}
				}
			}()
		}
	}()
	return ln.Addr().String()
}

// TestPipelined_Refused: if Redis refuses the connection, no reader of several sales takes that for an answer.
func TestPipelined_Refused(t *testing.T) {
	t.Parallel()
	ctx := await.Context(t)
	s := newShop(t, redistest.Redis(t), open(10, 1), 0)
	rdb := redis.NewClient(&redis.Options{Addr: refusingServer(t), Password: "changed", MaxRetries: -1})
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	v := &Inventory{keys: keys{1}, rdb: rdb, source: s.source}
	ids := []string{s.item, "other"}
	for name, call := range map[string]func() error{
		"Left":     func() error { _, err := v.Left(ctx, ids); return err },
		"Lives":    func() error { _, err := v.Lives(ctx, ids); return err },
		"Progress": func() error { _, err := v.Progress(ctx, 1, ids); return err },
		"Void":     func() error { return v.Void(ctx, 1, ids) },
		"Free":     func() error { _, err := Free(ctx, rdb, 1, ids); return err },
		"claim": func() error {
			_, err := (&reload{v: v}).claim(ctx, claimPrefix+"test", []Loadable{{Item: s.item}})
			return err
		},
	} {
		if err := call(); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v, want %v", name, err, ErrUnavailable)
		}
	}
}
