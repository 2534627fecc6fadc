package postgres

import (
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgresserver"
	"flashsale/internal/testing/postgrestest"
)

// A pooler is recognised while other clients use it, which changes the order in which it gives its
// sessions.
func TestCheckPooler_Busy(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it starts a Postgres server, and -short asks for the quick tests")
	}
	t.Parallel()
	server := postgrestest.Server(t)
	address := postgrestest.Bouncer(t, server, postgresserver.Transaction)(postgresserver.Superuser)
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(await.Context(t), address+"&default_query_exec_mode=exec")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := conn.Close(await.Context(t)); err != nil {
				t.Error(err)
			}
		})
		return conn
	}
	var others sync.WaitGroup
	stop := make(chan struct{})
	for range 8 {
		conn := connect()
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := conn.PgConn().Exec(await.Context(t), "SELECT 1").ReadAll(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 20 {
		if err := CheckPooler(await.Context(t), connect()); !errors.Is(err, ErrPooled) {
			t.Errorf("%v, want ErrPooled", err)
		}
	}
	close(stop)
	others.Wait()
}
