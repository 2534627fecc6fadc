package postgrestest

import (
	"net/url"
	"strings"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgresserver"
)

// Three connected clients share one session of the server.
func TestBouncer(t *testing.T) {
	t.Parallel()
	i := Server(t)
	at := Bouncer(t, i, postgresserver.Transaction)
	u, err := url.Parse(i.NewDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx := await.Context(t)
	pid := 0
	for n := range 3 {
		db := open(t, at(strings.TrimPrefix(u.Path, "/"))+"&default_query_exec_mode=simple_protocol")
		conn, err := db.Conn(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := conn.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		var got int
		if err := conn.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&got); err != nil {
			t.Fatal(err)
		}
		if n > 0 && got != pid {
			t.Errorf("client %d has session %d, not %d: the clients share none", n, got, pid)
		}
		pid = got
	}
}
