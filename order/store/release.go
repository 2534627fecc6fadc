package store

import (
	"context"
	"database/sql"

	"flashsale/order/store/database"
)

// Release is a pending release: the units of one closed order that have to return to its sale.
type Release struct {
	OrderID        string
	ItemID         string
	UserID         string
	IdempotencyKey string
	Quantity       int64
	CreatedAt      int64 // Unix milliseconds; when the order was closed
}

// ReadReleases reads the rows of a query with the columns of SelectReleasesOfOrders.
func ReadReleases(ctx context.Context, c database.Conn, query string, args ...any) ([]Release, error) {
	var list []Release
	err := database.Each(ctx, c, query, args, func(rows *sql.Rows) error {
		var r Release
		err := rows.Scan(&r.OrderID, &r.ItemID, &r.UserID, &r.IdempotencyKey, &r.Quantity, &r.CreatedAt)
		list = append(list, r)
		return err
	})
	if err != nil {
		return nil, database.Wrap("read releases", err)
	}
	return list, nil
}
