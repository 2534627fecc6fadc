package items

import (
	"context"

	"flashsale/order"
)

// What only the external tests of this package use.

var (
	ChangeItem   = changeItem
	ErrRestocked = &errRestocked
)

// Edit returns the restock as a change of the item's row.
func (r *Restock) Edit(id string, by order.By) *edit { return r.edit(id, by) }

// Spread spreads a restock over the buckets of an item.
func (s *Service) Spread(ctx context.Context, ids []string, quantity int64) {
	s.spread(ctx, ids, quantity)
}

// WithoutNote removes what the audit shows beside the changed fields.
func (e *edit) WithoutNote() { e.note = nil }
