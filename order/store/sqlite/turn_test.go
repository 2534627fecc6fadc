//go:build unix

package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"flashsale/internal/testing/await"
)

// writers opens n pools with one writing connection each on a new file, as n processes do.
func writers(t *testing.T, n int) (path string, pools []*sql.DB) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "shop.db")
	for range n {
		pools = append(pools, writerOf(t, path))
	}
	return path, pools
}

func beginOn(t *testing.T, ctx context.Context, pool *sql.DB) *sql.Tx { //nolint:revive // t first, as everywhere in tests
	t.Helper()
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		t.Error(err)
		return nil
	}
	return tx
}

func rollBack(t *testing.T, tx *sql.Tx) {
	t.Helper()
	if tx == nil {
		return
	}
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}
}

// hold takes the turn of a database until the test ends, as a suspended process does.
func hold(t *testing.T, path string) {
	t.Helper()
	other := openTurn(path)
	if !other.take(await.Context(t)) {
		t.Fatal("the turn of a free database was not taken")
	}
	t.Cleanup(func() {
		if err := other.close(); err != nil {
			t.Error(err)
		}
	})
}

// TestTurn_InOrder: a writer that begins again as soon as it has committed comes after one that has
// waited meanwhile.
func TestTurn_InOrder(t *testing.T) {
	t.Parallel()
	ctx := await.Context(t)
	path, pools := writers(t, 2)
	busy, patient := pools[0], pools[1]
	probe := openTurn(path)
	defer func() {
		if err := probe.close(); err != nil {
			t.Error(err)
		}
	}()
	for range 20 {
		first := beginOn(t, ctx, busy)
		order := make(chan string, 2)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			tx := beginOn(t, ctx, patient)
			order <- "patient"
			rollBack(t, tx)
		}()
		await.True(t, "the other to wait", func() bool {
			if !probe.file.tryLock() {
				return true
			}
			probe.giveBack()
			return false
		})
		rollBack(t, first)
		second := beginOn(t, ctx, busy)
		order <- "busy"
		rollBack(t, second)
		<-ended
		if got := []string{<-order, <-order}; !slices.Equal(got, []string{"patient", "busy"}) {
			t.Fatalf("the transactions began in the order %v", got)
		}
	}
}

// TestTurn_Suspended: a process that was suspended while it had the turn stops no other.
func TestTurn_Suspended(t *testing.T) {
	t.Parallel()
	path, pools := writers(t, 1)
	hold(t, path)
	for range 3 {
		rollBack(t, beginOn(t, await.Context(t), pools[0]))
	}
	own := openTurn(path)
	defer func() {
		if err := own.close(); err != nil {
			t.Error(err)
		}
	}()
	if own.take(await.Context(t)) || own.rest.IsZero() {
		t.Errorf("the turn was taken, or would be waited for again at once: %v", own.rest)
	}
}

// TestTurn_Ended: a wait for the turn or for the lock ends with the context.
func TestTurn_Ended(t *testing.T) {
	t.Parallel()
	path, pools := writers(t, 2)
	tx := beginOn(t, await.Context(t), pools[0])
	defer rollBack(t, tx)
	hold(t, path)
	ctx, cancel := context.WithCancel(await.Context(t))
	cancel()
	if _, err := pools[1].BeginTx(ctx, nil); err == nil {
		t.Error("a transaction began beside another")
	}
	if openTurn(path).take(ctx) {
		t.Error("the turn was taken twice")
	}
}

// TestTurn_NoFile: a process that cannot open the file, or finds a link in its place, writes without turns.
func TestTurn_NoFile(t *testing.T) {
	t.Parallel()
	for what, put := range map[string]func(file string) error{
		"folder": func(file string) error { return os.Mkdir(file, 0o700) },
		"link": func(file string) error {
			other := file + ".other"
			return errors.Join(os.WriteFile(other, nil, 0o600), os.Symlink(other, file))
		},
	} {
		path := filepath.Join(t.TempDir(), "shop.db")
		if err := put(path + turnSuffix); err != nil {
			t.Fatal(err)
		}
		if openTurn(path) != nil {
			t.Errorf("a %s was opened as the file", what)
		}
		rollBack(t, beginOn(t, await.Context(t), writerOf(t, path)))
	}
}
