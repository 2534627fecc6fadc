//go:build unix

// The tests of this folder start a Postgres server with these settings.
package postgres_test

import (
	"database/sql"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgrestest"
	"flashsale/internal/testing/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// documented are the settings of the file. docs/postgres.md has a row for each.
var documented = map[string]string{
	"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "min_wal_size": "1024", "max_connections": "200",
	"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3",
	"statement_timeout": "0", "idle_in_transaction_session_timeout": "0", "autovacuum": "on",
}

// readable copies the file to where the user of the server can read it.
func readable(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("postgresql.conf")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "postgresql-conf-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "postgresql.conf")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{dir: 0o755, path: 0o644} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// A server accepts the file as its configuration, and its settings have the documented values.
func TestConf(t *testing.T) {
	t.Parallel()
	path := readable(t)
	// A different number on the command line would count as an error of the file.
	server := postgrestest.Start(t, postgrestest.Options{Sync: true, Settings: []string{"config_file=" + path, "max_connections=200"}})
	page, err := os.ReadFile("../../docs/postgres.md")
	if err != nil {
		t.Fatal(err)
	}
	found, data := make(map[string]string), ""
	err = server.Do(await.Context(t), "postgres", func(db *sql.DB) error {
		if err := db.QueryRowContext(t.Context(), "SHOW data_directory").Scan(&data); err != nil {
			return err
		}
		rows, err := db.QueryContext(t.Context(), "SELECT name, setting, coalesce(error, '') FROM pg_file_settings WHERE sourcefile = $1", path)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var name, value, failed string
			if err := rows.Scan(&name, &value, &failed); err != nil {
				return err
			}
			if found[name] = value; failed != "" {
				t.Errorf("%s = %s: %s", name, value, failed)
			}
		}
		return rows.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range documented {
		if found[name] != want {
			t.Errorf("%s is %q in the file, want %q", name, found[name], want)
		}
		if row := regexp.MustCompile("(?m)^\\| .*`" + name + "`.* \\|"); !row.Match(page) {
			t.Errorf("docs/postgres.md has no row for %s", name)
		}
		// The server of the tests overrides some of them.
		out, err := exec.CommandContext(t.Context(), postgrestest.Program(t, "postgres"), "-C", name, "-D", data, "-c", "config_file="+path).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%s takes effect as %q, %v; want %q", name, got, err, want)
		}
	}
	for name := range found {
		if _, known := documented[name]; !known {
			t.Errorf("the test does not know the setting %s of the file", name)
		}
	}
}
