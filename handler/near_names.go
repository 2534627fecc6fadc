package handler

import (
	"maps"
	"strings"
)

// nearNames say, for a field that a route does not take, which one was probably meant.
type nearNames map[string]string

const (
	useStock   = "At creation the units on sale are named stock; afterwards the item has stock_total and stock_left."
	useRestock = "Stock does not change here; use POST /v1/admin/items/{item}/restock with the units to add as quantity."
	readOnly   = "The service sets this field; omit it."
)

// near is what both the creation and the change of an item answer.
var near = nearNames{
	"price":          "Use price_minor, in the currency's minor unit (cents).",
	"limit":          "Use per_user_limit.",
	"payment_window": "Use payment_window_seconds.",
	"server_time":    readOnly,
}

// nearCreate and nearChange add what differs between the two.
var (
	nearCreate = near.and(nearNames{
		"stock_total": useStock, "stock_left": useStock, "quantity": useStock, "version": readOnly,
		"state": "The state follows from opens_at, closes_at and the stock; omit it.",
	})
	nearChange = near.and(nearNames{
		"stock_total": useRestock, "stock_left": useRestock, "quantity": useRestock,
		"version": "Send the version as If-Match: the ETag of GET /v1/admin/items/{item}.",
		"state":   "Use POST /v1/admin/items/{item}/pause, /resume or /close.",
	})
)

func (n nearNames) and(more nearNames) nearNames {
	all := make(nearNames, len(n)+len(more))
	maps.Copy(all, n)
	maps.Copy(all, more)
	return all
}

// hint returns what to use instead of an unknown field; empty where nothing is near.
func (n nearNames) hint(unknown string, known map[string]bool) string {
	if hint := n[unknown]; hint != "" {
		return hint
	}
	plain := plainName(unknown)
	for name := range known {
		if plainName(name) == plain {
			return "Use " + name + ", in lower case with underscores."
		}
	}
	return ""
}

// plainName is a name without what spellings differ in: capitals, underscores, hyphens.
func plainName(name string) string {
	return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(name))
}
