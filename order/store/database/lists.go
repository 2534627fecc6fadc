package database

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"flashsale/order/timeouts"
)

// ReadList runs fn, which reads a page of a list, when it is its turn. It returns once the
// synchronous standbys have what fn has read: see Replicated. Errors: ErrTooManyLists, ErrUnavailable,
// and fn's.
func (db *DB) ReadList(ctx context.Context, operation string, fn func(db *gorm.DB) error) error {
	if err := db.lists.read(ctx, operation, fn); err != nil {
		return err
	}
	return db.Replicated(ctx)
}

// ErrTooManyLists says that the maximum number of lists is being read. Retry in a second.
var ErrTooManyLists = errors.New("order: too many lists are being read")

// maxLists is how many pages of long lists are read concurrently.
const maxLists = 2

// listWait is how long a list waits for another one to finish. See timeouts.Write.
var listWait = time.Second

// listPool reads the lists of all buyers' orders, payments and audit entries. It has its
// own connections, so that no list delays a purchase or a buyer's page.
type listPool struct {
	db    *gorm.DB
	turns chan struct{}
}

func newListPool() *listPool { return &listPool{turns: make(chan struct{}, maxLists)} }

// read runs fn once a turn is free. Errors: ErrTooManyLists, ErrUnavailable, and those of fn.
func (p *listPool) read(ctx context.Context, operation string, fn func(db *gorm.DB) error) error {
	timer := time.NewTimer(listWait)
	defer timer.Stop()
	select {
	case p.turns <- struct{}{}:
		defer func() { <-p.turns }()
	case <-timer.C:
		return fmt.Errorf("%s: %w", operation, ErrTooManyLists)
	case <-ctx.Done():
		return Wrap(operation, context.Cause(ctx))
	}
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	if err := fn(p.db.WithContext(ctx)); err != nil {
		return Wrap(operation, err)
	}
	return nil
}
