// Package schema has the rows of the tables that several features read: items and orders.
package schema

import (
	"time"

	"flashsale/catalog"
	"flashsale/order"
)

// Item is a row of the table items.
type Item struct {
	ID                   string `gorm:"primaryKey"`
	Name                 string
	Description          string
	ImageURL             string
	PriceMinor           int64
	Currency             string
	Initial              int64
	Total                int64
	Sold                 int64
	PerUserLimit         int64
	OpensAt              int64
	ClosesAt             int64
	PaymentWindowSeconds int64
	Control              string
	Version              int64
	Sequence             int64 // see inventory.Sale
	Revision             int64 // see HighWater
	Awaiting             int64 // units of Sold that await payment
	Freed                bool  // see SweeperConfig.KeepEnded
	Buckets              int64 // see catalog.Item
	Moves                int64 // see catalog.Item
	CreatedAt            int64 `gorm:"autoCreateTime:false"`
	UpdatedAt            int64 `gorm:"autoUpdateTime:false"`
}

// TableName returns the name of the table to gorm.
func (Item) TableName() string { return "items" }

// Item returns the item of the row.
func (r *Item) Item() catalog.Item {
	return catalog.Item{
		ID: r.ID, Name: r.Name, Description: r.Description, ImageURL: r.ImageURL,
		PriceMinor: r.PriceMinor, Currency: r.Currency,
		StockInitial: r.Initial, StockTotal: r.Total, StockLeft: r.Total - r.Sold,
		PerUserLimit: r.PerUserLimit,
		OpensAt:      order.FromMillis(r.OpensAt), ClosesAt: order.FromMillis(r.ClosesAt),
		PaymentWindow: time.Duration(r.PaymentWindowSeconds) * time.Second,
		Control:       catalog.Control(r.Control), Version: r.Version, Buckets: int(r.Buckets), Moves: r.Moves,
	}
}

// Order is a row of the table orders. Its columns have the names of the JSON fields.
type Order struct {
	ID               string `gorm:"primaryKey"`
	ItemID           string
	UserID           string
	Quantity         int64
	UnitPriceMinor   int64
	Currency         string
	Status           string
	Reason           string
	IdempotencyKey   string
	CreatedAt        int64 `gorm:"autoCreateTime:false"`
	ConfirmedAt      int64
	ExpiresAt        int64
	PaidAt           int64
	ClosedAt         int64
	PaymentReference string
	Restocked        bool
}

// TableName returns the name of the table to gorm.
func (Order) TableName() string { return "orders" }

// Order returns the order of the row.
func (r *Order) Order() order.Order {
	return order.Order{
		ID: r.ID, ItemID: r.ItemID, UserID: r.UserID, Quantity: r.Quantity,
		UnitPriceMinor: r.UnitPriceMinor, Currency: r.Currency,
		Status: order.Status(r.Status), Reason: r.Reason, IdempotencyKey: r.IdempotencyKey,
		CreatedAt: order.FromMillis(r.CreatedAt), ConfirmedAt: order.FromMillis(r.ConfirmedAt),
		ExpiresAt: order.FromMillis(r.ExpiresAt), PaidAt: order.FromMillis(r.PaidAt), ClosedAt: order.FromMillis(r.ClosedAt),
		PaymentReference: r.PaymentReference, Restocked: r.Restocked,
	}
}

// Holds reports whether the order's units are taken from the stock. It equals store.OrdersHold.
func (r *Order) Holds() bool {
	switch order.Status(r.Status) {
	case order.StatusConfirmed, order.StatusPaid:
		return true
	case order.StatusRefunded:
		return !r.Restocked
	default:
		return false
	}
}

// Facts returns an item's fields for the audit, named as in the API.
func (r *Item) Facts() map[string]any {
	return map[string]any{
		"name": r.Name, "description": r.Description, "image_url": r.ImageURL, "price_minor": r.PriceMinor, "currency": r.Currency,
		"stock_total": r.Total, "per_user_limit": r.PerUserLimit,
		"opens_at": timeFact(r.OpensAt), "closes_at": timeFact(r.ClosesAt),
		"payment_window_seconds": r.PaymentWindowSeconds, "control": r.Control,
	}
}

// timeFact formats a time as the API does; nil for no time.
func timeFact(ms int64) any {
	if ms == 0 {
		return nil
	}
	return order.FromMillis(ms).Format("2006-01-02T15:04:05.000Z07:00")
}

// Ended reports whether the sale is over at that time.
func (r *Item) Ended(at time.Time) bool {
	return r.Control == string(catalog.ControlClosed) || r.ClosesAt != 0 && r.ClosesAt <= at.UnixMilli()
}
