package postgrestest

import (
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgresserver"
)

// Bouncer starts a PgBouncer in front of a server, for this test, in a mode of package
// postgresserver. It returns the function that returns the URL of a database. If PgBouncer is not
// installed, the test is skipped, or fails with CI=true.
func Bouncer(t testing.TB, i *Instance, mode string) (url func(database string) string) {
	t.Helper()
	return StartBouncer(t, i, mode).URL
}

// StartBouncer is Bouncer for a test that kills and restarts the process.
func StartBouncer(t testing.TB, i *Instance, mode string) *PgBouncer {
	t.Helper()
	need(t, postgresserver.MissingBouncer(), "PgBouncer", "pgbouncer")
	b, err := postgresserver.StartBouncer(await.Context(t), i.Server, mode)
	if err != nil {
		t.Fatalf("postgrestest: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of PgBouncer:\n%s", b.LogEnd())
		}
		if err := b.Close(); err != nil {
			t.Errorf("postgrestest: stop PgBouncer: %v", err)
		}
	})
	return &PgBouncer{b}
}

// PgBouncer is a PgBouncer process in front of a server. One goroutine at a time may kill and
// restart it.
type PgBouncer struct{ *postgresserver.Bouncer }

// Kill kills the process, and with it all its connections.
func (b *PgBouncer) Kill(t testing.TB) {
	t.Helper()
	if err := b.Bouncer.Kill(); err != nil {
		t.Fatalf("postgrestest: kill PgBouncer: %v", err)
	}
}

// Restart starts the process again on its port, after Kill, and returns once it answers.
func (b *PgBouncer) Restart(t testing.TB) {
	t.Helper()
	if err := b.Bouncer.Restart(await.Context(t)); err != nil {
		t.Fatalf("postgrestest: restart: %v", err)
	}
}
