// Package postgrestest gives tests a real Postgres: a server that the tests of a binary share,
// each with a database of its own, or a server that one test may kill and restart. It also
// starts PgBouncer in front of a server.
//
// The servers listen on a free loopback port only. They end with the test binary, also when
// that crashes or is killed, and then their folders are removed.
package postgrestest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"flashsale/internal/testing/atend"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgresserver"
)

// startWithin bounds the creation of a server's files, and the wait for its first answer.
const startWithin = 2 * time.Minute

// Options configure a server of a test. The zero value is the configuration of the shared
// server.
type Options struct {
	// Sync makes commits survive a loss of power, and slow. Without it they survive only the
	// end of the server's processes.
	Sync bool
	// Settings are further settings of the server, each as "name=value".
	Settings []string
	// Folder is where the server's files are created. Empty: where temporary files are.
	Folder string
	// Primary is the running server that this one follows, as a hot standby, until it is promoted;
	// nil: none.
	Primary *postgresserver.Server
}

var shared = sync.OnceValues(func() (*Instance, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	i, err := start(ctx, Options{})
	if err == nil {
		atend.Do(i.closeLogged)
	}
	return i, err
})

// Server returns the server that this test binary shares, and starts it on the first call. Its
// tests use separate databases. If Postgres is not installed, the test is skipped, or fails with
// CI=true.
func Server(t testing.TB) *Instance {
	t.Helper()
	need(t, postgresserver.Missing(), "Postgres", "postgresql")
	i, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// Start starts a server for this test, which may kill and restart it. It takes a few seconds.
// The rule of [Server] applies where Postgres is not installed.
func Start(t testing.TB, o Options) *Instance {
	t.Helper()
	need(t, postgresserver.Missing(), "Postgres", "postgresql")
	i, err := start(await.Context(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of Postgres:\n%s", i.LogEnd())
		}
		if err := i.Close(); err != nil {
			t.Errorf("postgrestest: stop: %v", err)
		}
	})
	return i
}

func start(ctx context.Context, o Options) (*Instance, error) {
	s, err := postgresserver.Start(ctx, postgresserver.Config(o))
	if err != nil {
		return nil, fmt.Errorf("postgrestest: %w", err)
	}
	return &Instance{Server: s}, nil
}

// NewDatabase returns the URL of an empty database on the shared server. It is dropped at the
// end of the test.
func NewDatabase(t testing.TB) string {
	t.Helper()
	return Server(t).NewDatabase(t)
}

// Migrated returns the URL of a database on the shared server with the schema that migrate
// creates. It is dropped at the end of the test. Migrations take long, so migrate runs once per
// test binary, and every database is a copy of its result: all calls must pass the same
// function.
func Migrated(t testing.TB, migrate func(url string) error) string {
	t.Helper()
	return Server(t).Migrated(t, migrate)
}

// need skips the test, or fails it with CI=true, because of err.
func need(t testing.TB, err error, program, dependency string) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("%s cannot be started, and with CI=true no engine may be skipped: %v; `.ci/deps.sh %s` installs it", program, err, dependency)
	default:
		t.Skipf("skipped: %s cannot be started: %v; `.ci/deps.sh %s` installs it", program, err, dependency)
	}
}
