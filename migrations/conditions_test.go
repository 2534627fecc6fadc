package migrations

import (
	"slices"
	"strings"
)

// condition is a statement that the schema allows or refuses.
type condition struct {
	statement string
	allowed   bool
}

// conditions concern each CHECK and each unique index of the schema.
var conditions = slices.Concat(
	row("meta", "key, value", "'k', 'v'").refusing("'k', 'w'", "NULL, 'v'", "'l', NULL"),
	row("items", "id, name, price_minor, currency, initial, total, sold, per_user_limit, opens_at, closes_at, payment_window_seconds, control, created_at, updated_at",
		"'i', 'n', 0, 'EUR', 0, 0, 0, 1, 5, 0, 0, 'open', 1, 1",
		"'"+strings.Repeat("é", 64)+"', 'n', 1, '元元元', 2, 3, 3, 9, 5, 6, 7, 'closed', 1, 1",
		"'paused', 'n', 1, 'EUR', 2, 3, 1, 9, 5, 6, 7, 'paused', 1, 1").
		refusing(
			"'i', 'n', 0, 'EUR', 0, 0, 0, 1, 5, 0, 0, 'open', 1, 1",
			"'', 'n', 0, 'EUR', 0, 0, 0, 1, 5, 0, 0, 'open', 1, 1",
			"'"+strings.Repeat("é", 65)+"', 'n', 0, 'EUR', 0, 0, 0, 1, 5, 0, 0, 'open', 1, 1",
			"'j', NULL, 0, 'EUR', 0, 0, 0, 1, 5, 0, 0, 'open', 1, 1",
			"'j', 'n', -1, 'EUR', 0, 0, 0, 1, 5, 0, 0, 'open', 1, 1",
			"'j', 'n', 0, 'EURO', 0, 0, 0, 1, 5, 0, 0, 'open', 1, 1",
			"'j', 'n', 0, 'EUR', -1, 0, 0, 1, 5, 0, 0, 'open', 1, 1",
			"'j', 'n', 0, 'EUR', 0, -1, 0, 1, 5, 0, 0, 'open', 1, 1",
			"'j', 'n', 0, 'EUR', 0, 0, 1, 1, 5, 0, 0, 'open', 1, 1",
			"'j', 'n', 0, 'EUR', 0, 0, -1, 1, 5, 0, 0, 'open', 1, 1",
			"'j', 'n', 0, 'EUR', 0, 0, 0, 0, 5, 0, 0, 'open', 1, 1",
			"'j', 'n', 0, 'EUR', 0, 0, 0, 1, 5, 5, 0, 'open', 1, 1",
			"'j', 'n', 0, 'EUR', 0, 0, 0, 1, 5, 0, -1, 'open', 1, 1",
			"'j', 'n', 0, 'EUR', 0, 0, 0, 1, 5, 0, 0, 'Open', 1, 1"),
	row("orders", "id, item_id, user_id, quantity, unit_price_minor, currency, status, idempotency_key, created_at",
		"'o1', 'i', 'u', 1, 0, 'EUR', 'confirmed', 'k1', 1", "'o2', 'i', 'u', 1, 0, 'EUR', 'paid', 'k2', 1",
		"'o3', 'i', 'u', 1, 0, 'EUR', 'cancelled', 'k3', 1", "'o4', 'i', 'u', 1, 0, 'EUR', 'expired', 'k4', 1",
		"'o5', 'i', 'u', 1, 0, 'EUR', 'rejected', 'k5', 1", "'o6', 'i', 'u', 1, 0, 'EUR', 'refunded', 'k6', 1",
		"'o7', 'i', 'U', 1, 0, 'EUR', 'paid', 'K1', 1").
		refusing(
			"'o1', 'i', 'u', 1, 0, 'EUR', 'confirmed', 'k9', 1", "'o9', 'i', 'u', 1, 0, 'EUR', 'confirmed', 'k1', 1",
			"'o9', 'i', 'u', 0, 0, 'EUR', 'confirmed', 'k9', 1", "'o9', 'i', 'u', 1, -1, 'EUR', 'confirmed', 'k9', 1",
			"'o9', 'i', 'u', 1, 0, 'EUR', 'queued', 'k9', 1", "NULL, 'i', 'u', 1, 0, 'EUR', 'confirmed', 'k9', 1",
			"'o9', 'i', 'u', NULL, 0, 'EUR', 'confirmed', 'k9', 1"),
	row("buyers", "item_id, user_id, quantity", "'i', 'u', 0", "'i', 'v', 3").refusing("'i', 'u', 1", "'i', 'w', -1", "'i', NULL, 1"),
	row("payments", "order_id, reference, amount_minor, currency, received_as, outcome, received_at, refunded_at",
		"'o', 'r1', 0, 'EUR', 'accepted', 'accepted', 1, 0", "'o', 'r2', 1, 'EUR', 'late', 'late', 1, 0",
		"'o', 'r3', 1, 'EUR', 'duplicate', 'refunded', 1, 2", "'o', 'r4', 1, 'EUR', 'mismatch', 'mismatch', 1, 0",
		"'p', '"+strings.Repeat("é", 255)+"', 1, 'EUR', 'accepted', 'refunded', 1, 2").
		refusing(
			"'q', 'r1', 1, 'EUR', 'late', 'late', 1, 0", "'o', 'r9', 1, 'EUR', 'accepted', 'accepted', 1, 0",
			"'q', '', 1, 'EUR', 'late', 'late', 1, 0", "'q', '"+strings.Repeat("é", 256)+"', 1, 'EUR', 'late', 'late', 1, 0",
			"'q', 'r9', -1, 'EUR', 'late', 'late', 1, 0", "'q', 'r9', 1, 'EUR', 'paid', 'paid', 1, 0",
			"'q', 'r9', 1, 'EUR', 'late', 'accepted', 1, 0", "'q', 'r9', 1, 'EUR', 'late', 'refunded', 1, 0", "'q', 'r9', 1, 'EUR', 'late', 'late', 1, 2"),
	row("releases", "order_id, item_id, user_id, idempotency_key, quantity, created_at", "'o', 'i', 'u', 'k', 1, 1").
		refusing("'o', 'i', 'u', 'k', 1, 1", "'p', 'i', 'u', 'k', 0, 1"),
	row("stock_changes", "item_id, quantity, reason, actor, idempotency_key, total_after, at",
		"'i', 1, '', 'a', 'k', 0, 1", "'j', -1, '', 'a', 'k', 0, 1").
		refusing("'i', 1, '', 'a', 'k', 0, 1", "'i', 0, '', 'a', 'l', 0, 1", "'i', 1, '', 'a', 'l', -1, 1"),
	row("audit", "at, actor, action", "1, 'a', 'b'", "1, 'a', 'b'").refusing("NULL, 'a', 'b'", "1, NULL, 'b'"),
	row("webhook_endpoints", "id, url, events, enabled, secret, created_at, updated_at",
		"'e', 'u', '', 0, 's', 1, 1", "'f', 'u', '', 1, 's', 1, 1").
		refusing("'e', 'u', '', 0, 's', 1, 1", "'g', 'u', '', 2, 's', 1, 1", "'g', 'u', '', -1, 's', 1, 1"),
	row("webhook_events", "id, type, body, at", "'v', 't', '', 1", "'w', 't', '', 1").refusing("'v', 't', '', 1", "NULL, 't', '', 1"),
	row("webhook_deliveries", "endpoint_id, event_seq, state, next_at",
		"'e', 1, 'pending', 1", "'e', 2, 'delivered', 1", "'f', 1, 'dead', 1").
		refusing("'e', 1, 'pending', 1", "'e', 3, 'lost', 1", "'e', NULL, 'pending', 1"),
	[]condition{
		{"UPDATE items SET sold = total + 1 WHERE id = 'paused'", false},
		{"UPDATE items SET sold = total WHERE id = 'paused'", true},
		{"UPDATE orders SET idempotency_key = 'k1' WHERE id = 'o2'", false},
		{"UPDATE payments SET outcome = 'refunded' WHERE reference = 'r1'", false},
		{"UPDATE payments SET outcome = 'refunded', refunded_at = 1 WHERE reference = 'r1'", true},
		{"UPDATE payments SET received_as = 'accepted' WHERE reference = 'r3'", false},
		// The numbers of a copied database are kept.
		{"INSERT INTO audit (id, at, actor, action) VALUES (100, 1, 'a', 'b')", true},
		{"INSERT INTO audit (id, at, actor, action) VALUES (100, 1, 'a', 'b')", false},
		{"INSERT INTO webhook_events (seq, id, type, body, at) VALUES (100, 'x', 't', '', 1)", true},
	},
)

// allowedRows are rows of one table that the schema allows.
type allowedRows []condition

func row(table, columns string, values ...string) allowedRows {
	var out allowedRows
	for _, v := range values {
		out = append(out, condition{"INSERT INTO " + table + " (" + columns + ") VALUES (" + v + ")", true})
	}
	return out
}

// refusing adds rows that the schema refuses.
func (r allowedRows) refusing(values ...string) []condition {
	head, _, _ := strings.Cut(r[0].statement, " VALUES ")
	out := []condition(r)
	for _, v := range values {
		out = append(out, condition{head + " VALUES (" + v + ")", false})
	}
	return out
}
