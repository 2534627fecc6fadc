package order

import (
	"time"
)

// By is who makes a change, as the audit names it.
type By struct {
	Actor     string // the token's subject; empty where nobody asked
	RequestID string // the request that asked for it
}

// The actions that the audit knows.
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

// AuditEntry is one change that was made, and by whom.
type AuditEntry struct {
	ID        int64 // rises with every entry
	At        time.Time
	Actor     string
	Action    string
	ItemID    string // empty: it concerns no item
	OrderID   string // empty: it concerns no order
	Before    string // the changed fields as they were, in JSON; empty for what was made new
	After     string // the changed fields as they are, in JSON
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
