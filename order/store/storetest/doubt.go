package storetest

import (
	"context"
	"errors"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgrestest"
	"flashsale/order/ordertest"
	"flashsale/order/store"
)

// Doubt is a store on a Postgres server of the test's own. Begin makes it doubtful whether a
// synchronous standby has what the store reads.
type Doubt struct {
	*store.Store
	server *postgrestest.Instance
}

// NewDoubt returns a store without a doubt.
func NewDoubt(t testing.TB) *Doubt {
	t.Helper()
	server := postgrestest.Start(t, postgrestest.Options{})
	return &Doubt{open(t, ordertest.NewPostgresOn(t, server)), server}
}

// Begin crashes the server, and requires a standby that does not exist, until End or the end of the
// test.
func (d *Doubt) Begin(t testing.TB) {
	t.Helper()
	t.Cleanup(func() { d.End(t) })
	d.server.RequireStandby(t, "none")
	d.server.Kill(t)
	d.server.Restart(t)
	await.True(t, "the store has a connection again", func() bool {
		return d.Reader().WithContext(await.Context(t)).Exec("SELECT 1").Error == nil
	})
}

// End removes the requirement.
func (d *Doubt) End(t testing.TB) {
	t.Helper()
	d.server.RequireStandby(t, "")
}

// Refuses checks that a call does not return before the standby has everything: it is cancelled
// once it waits for that.
func (d *Doubt) Refuses(t testing.TB, call func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(await.Context(t))
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- call(ctx) }()
	await.True(t, "the call to wait for the standby, or to end", func() bool {
		return d.server.WaitingCommits(t) > 0 || len(ended) > 0
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the call did not wait for the standby: %v", err)
	}
}
