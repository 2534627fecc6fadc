package database

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgresserver"
	"flashsale/internal/testing/postgrestest"
	"flashsale/order/store/postgres"
)

// TestOpen_Pooler: a database opens behind a pooler in transaction mode only if it keeps nothing in a session, and
// leaves nothing in one otherwise.
func TestOpen_Pooler(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it starts a Postgres server, and -short asks for the quick tests")
	}
	t.Parallel()
	server := postgrestest.Server(t)
	direct := server.NewDatabase(t)
	u, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(u.Path, "/")
	pooled := postgrestest.Bouncer(t, server, postgresserver.Transaction)(name)
	const mode = "&default_query_exec_mode="
	for _, suffix := range []string{"", mode + "cache_statement", mode + "cache_describe", mode + "describe_exec", mode + "exec"} {
		db, err := open(t, pooled+suffix)
		if err == nil {
			err = db.Close()
		}
		if !errors.Is(err, postgres.ErrPooled) {
			t.Errorf("transaction mode, %q: %v, want ErrPooled", suffix, err)
		}
	}
	session := postgrestest.Bouncer(t, server, postgresserver.Session)(name)
	for _, address := range []string{pooled + mode + "simple_protocol", session, direct} {
		if err := openDB(t, address).Reader().WithContext(await.Context(t)).Exec("SELECT 1").Error; err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	conn, err := pgx.Connect(await.Context(t), pooled+mode+"simple_protocol")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(await.Context(t)) //nolint:errcheck // it only reads
	var prepared, set int
	const left = "SELECT (SELECT COUNT(*) FROM pg_prepared_statements), (SELECT COUNT(*) FROM pg_settings WHERE name = 'enable_seqscan' AND setting = 'off')"
	if err := conn.QueryRow(await.Context(t), left).Scan(&prepared, &set); err != nil {
		t.Fatal(err)
	}
	if prepared != 0 || set != 0 {
		t.Errorf("a session of the pooler has %d prepared statements and %d parameters", prepared, set)
	}
}
