package order

// The pages of one buyer's orders, which are few. The unary plus keeps the database from
// walking through everybody's orders by id, and from starting at an item or a status.
const (
	pageOfBuyer     = `SELECT ` + orderFields + ` FROM orders WHERE user_id = ?3 AND +id < ?1 ORDER BY +id DESC LIMIT ?2`
	pageOfBuyerIn   = `SELECT ` + orderFields + ` FROM orders WHERE user_id = ?3 AND +status = ?4 AND +id < ?1 ORDER BY +id DESC LIMIT ?2`
	pageOfBuyerOf   = `SELECT ` + orderFields + ` FROM orders WHERE user_id = ?3 AND item_id = ?4 AND +id < ?1 ORDER BY +id DESC LIMIT ?2`
	pageOfBuyerOfIn = `SELECT ` + orderFields + ` FROM orders WHERE user_id = ?3 AND item_id = ?4 AND +status = ?5 AND +id < ?1
		ORDER BY +id DESC LIMIT ?2`
)

// buyersQuery is orderQuery for a list of one buyer's orders; page are the values that
// all pages have.
func (f Filter) buyersQuery(page []any) orderQuery {
	args, status := append(page, f.UserID), string(f.Status)
	switch {
	case f.ItemID != "" && status != "":
		return orderQuery{query: pageOfBuyerOfIn, args: append(args, f.ItemID, status)}
	case f.ItemID != "":
		return orderQuery{query: pageOfBuyerOf, args: append(args, f.ItemID)}
	case status != "":
		return orderQuery{query: pageOfBuyerIn, args: append(args, status)}
	default:
		return orderQuery{query: pageOfBuyer, args: args}
	}
}
