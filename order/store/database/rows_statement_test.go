package database

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"flashsale/internal/testing/await"
)

// TestRowsStatement_exec: any number of rows is written, and reported.
func TestRowsStatement_exec(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	for n := range 600 {
		args := make([]any, 0, n*insertNotes.Columns())
		for i := range n {
			args = append(args, fmt.Sprintf("note %d of %d", i, n), "text")
		}
		var written int64
		// Committing each of them would sync the disk 600 times.
		err := change(await.Context(t), db, func(ctx context.Context, tx *Tx) (err error) {
			if written, err = insertNotes.Exec(ctx, tx, args); err != nil {
				t.Error(err)
			}
			return errTest
		})
		if !errors.Is(err, errTest) {
			t.Fatal(err)
		}
		if written != int64(n) {
			t.Errorf("%d rows are reported as %d", n, written)
		}
	}
}
