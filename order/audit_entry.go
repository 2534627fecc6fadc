package order

import (
	"time"
)

// By identifies the caller of a change, for the audit.
type By struct {
	Actor     string // the token's subject; empty if the service itself made the change
	RequestID string // the request that asked for it
}

// The actions recorded in the audit.
const (
	ActionItemCreate  = "item.create"
	ActionItemChange  = "item.change"
	ActionItemRestock = "item.restock"
	ActionItemPause   = "item.pause"
	ActionItemResume  = "item.resume"
	ActionItemClose   = "item.close"
	ActionItemRecover = "item.recover"
	ActionOrderCancel = "order.cancel"
	ActionOrderRefund = "order.refund"
	// ActionPaymentRefund marks an amount that paid nothing as refunded.
	ActionPaymentRefund   = "payment.refund"
	ActionBuyerErase      = "buyer.erase"
	ActionReconcileRepair = "reconcile.repair"
)

// AuditEntry is one recorded change, with its author.
type AuditEntry struct {
	ID        int64 // rises with every entry
	At        time.Time
	Actor     string
	Action    string
	ItemID    string // empty: it concerns no item
	OrderID   string // empty: it concerns no order
	Before    string // the changed fields before, in JSON; empty if the change created something
	After     string // the changed fields after, in JSON
	RequestID string
}

// AuditFilter selects entries of the audit, newest first.
type AuditFilter struct {
	ItemID  string // empty: any
	OrderID string // empty: any
	// Before is the id of the last entry of the page before; 0: from the start.
	Before int64
	Limit  int // 1 to 100
}
