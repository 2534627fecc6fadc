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
	actionItemCreate  = "item.create"
	actionItemChange  = "item.change"
	actionItemRestock = "item.restock"
	actionItemPause   = "item.pause"
	actionItemResume  = "item.resume"
	actionItemClose   = "item.close"
	actionItemRecover = "item.recover"
	actionOrderCancel = "order.cancel"
	actionOrderRefund = "order.refund"
	// actionPaymentRefund marks an amount that paid nothing as refunded.
	actionPaymentRefund   = "payment.refund"
	actionBuyerErase      = "buyer.erase"
	actionReconcileRepair = "reconcile.repair"
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
