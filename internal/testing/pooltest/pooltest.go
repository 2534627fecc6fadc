// Package pooltest keeps connections of a database from the code under test.
package pooltest

import (
	"database/sql"
	"sync"
	"testing"

	"flashsale/internal/testing/await"
)

// Hold takes all connections of a bounded pool, such as that of the writers, until release is called.
func Hold(t testing.TB, of interface{ DB() (*sql.DB, error) }) (release func()) {
	t.Helper()
	pool, err := of.DB()
	if err != nil {
		t.Fatal(err)
	}
	if pool.Stats().MaxOpenConnections == 0 {
		t.Fatal("the pool is not bounded")
	}
	held := make([]*sql.Conn, pool.Stats().MaxOpenConnections)
	for i := range held {
		if held[i], err = pool.Conn(await.Context(t)); err != nil {
			t.Fatal(err)
		}
	}
	release = sync.OnceFunc(func() {
		for _, c := range held {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(release)
	return release
}
