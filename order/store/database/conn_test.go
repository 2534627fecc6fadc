package database

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"gorm.io/gorm"

	"flashsale/internal/testing/await"
)

// TestOne reads one row on a connection of gorm, for a caller that has left, too.
func TestOne(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	mustNote(t, db, "n", 2)
	ctx := await.Context(t)
	left, leave := context.WithCancel(ctx)
	leave()
	err := db.Reader().WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		for query, c := range map[string]struct {
			ctx  context.Context //nolint:containedctx // it is an argument of the call
			id   string
			want error
		}{
			"SELECT id FROM notes WHERE id >= 'n' ORDER BY id": {left, "", context.Canceled},
			"SELECT id FROM notes ORDER BY id":                 {ctx, "n0000", nil},
			"SELECT id FROM notes WHERE id = 'none'":           {ctx, "", sql.ErrNoRows},
		} {
			var id string
			err := One(c.ctx, tx.Statement.ConnPool, query, nil, func(rows *sql.Rows) error { return rows.Scan(&id) })
			if !errors.Is(err, c.want) || id != c.id {
				t.Errorf("%s: %q, %v, want %q, %v", query, id, err, c.id, c.want)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
