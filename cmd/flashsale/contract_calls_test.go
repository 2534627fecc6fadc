//go:build unix

package main_test

import (
	"strconv"
	"testing"

	"flashsale/handler/auth"
)

// latePayment is for an order that has been cancelled.
const latePayment = `{"reference":"psp-2","amount_minor":4900,"currency":"EUR"}`

// saleInExamples are calls of every operation, in the order of a sale. Calls keep the ids that
// later ones need.
func saleInExamples(t *testing.T, ids map[string]string) []documentedCall {
	t.Helper()
	const buyer, admin, service = auth.RoleBuyer, auth.RoleAdmin, auth.RoleService
	anyVersion := []string{"If-Match", "*"}
	var first, second string // orders
	order := func(id *string) func(*answer) {
		return func(a *answer) { *id, ids["order"] = a.Order.ID, a.Order.ID }
	}
	use := func(id *string) func(*answer) { return func(*answer) { ids["order"] = *id } }
	all := []documentedCall{
		{operation: "getHealth", want: 200},
		{operation: "getReadiness", want: 200},
		{operation: "getOpenAPI", want: 200},
		{operation: "createDevToken", body: "buyer", want: 404}, // the service has a key

		{operation: "createItem", role: admin, body: "minimal", want: 201},
		{operation: "createItem", role: admin, body: "full", want: 409}, // it has the same id
		{operation: "warmItem", role: admin, want: 200},
		{operation: "listItems", query: true, want: 200},
		{operation: "getItem", want: 200},
		{operation: "getItemPlaceholder", want: 200},

		{operation: "placeOrder", role: buyer, sub: "alice", headers: untilCommitted, want: 201, keep: order(&first)},
		{operation: "placeOrder", role: buyer, sub: "alice", headers: untilCommitted, want: 201},
		{operation: "placeOrder", role: buyer, sub: "bob", headers: untilCommitted, want: 201, keep: order(&second)},
		{operation: "streamOrderEvents", role: buyer, sub: "bob", want: 200},
		{operation: "streamOrderEvents", role: buyer, sub: "bob", headers: []string{"Last-Event-ID", "2"}, want: 204},
		{operation: "cancelOrder", role: buyer, sub: "bob", want: 200},
		{operation: "recordPayment", role: service, text: latePayment, want: 409, keep: use(&first)},
	}
	all = append(all, moneyInExamples(t, ids)...)
	all = append(all,
		documentedCall{operation: "getAdminItem", role: admin, want: 200},
		documentedCall{operation: "changeItem", role: admin, body: "price", headers: anyVersion, want: 200},
		documentedCall{operation: "changeItem", role: admin, body: "endless", headers: anyVersion, want: 200},
		documentedCall{operation: "changeItem", role: admin, body: "image", headers: anyVersion, want: 200},
		documentedCall{operation: "getItem", want: 200},
		documentedCall{operation: "changeItem", role: admin, body: "imageless", headers: anyVersion, want: 200},
		documentedCall{operation: "restockItem", role: admin, body: "add", want: 200},
		documentedCall{operation: "restockItem", role: admin, body: "add", want: 200},
		documentedCall{operation: "restockItem", role: admin, body: "takeBack", want: 200},
		documentedCall{operation: "pauseItem", role: admin, want: 200},
		documentedCall{operation: "resumeItem", role: admin, headers: anyVersion, want: 200},
		documentedCall{operation: "getItemLedger", role: admin, want: 200},

		documentedCall{operation: "watchFigures", role: buyer, want: 403}, // the stream does not end
		documentedCall{operation: "watchFigures", role: service, query: true, want: 403},
		documentedCall{operation: "getQueues", role: admin, want: 200},
		documentedCall{operation: "verifyQueues", role: admin, query: true, want: 200},
		documentedCall{operation: "listDeadLetters", role: admin, query: true, want: 200},
		documentedCall{operation: "retryDeadLetter", role: admin, want: 404},
		documentedCall{operation: "discardDeadLetter", role: admin, want: 404},
		documentedCall{operation: "listAdminItems", role: admin, query: true, want: 200},
		documentedCall{operation: "getSystem", role: admin, want: 200},
		documentedCall{operation: "getDeadLetter", role: admin, want: 404},
		documentedCall{operation: "listDeadLetterGroups", role: admin, want: 200},
		documentedCall{operation: "retryDeadLetters", role: admin, body: "all", want: 200},
		documentedCall{operation: "discardDeadLetters", role: admin, body: "group", want: 200},
		documentedCall{operation: "getOrderTimeline", role: admin, want: 200},
		documentedCall{operation: "listAuditEntries", role: admin, query: true, want: 200},
		documentedCall{operation: "listAuditEntries", role: admin, want: 200},
		documentedCall{operation: "reconcile", role: admin, want: 200},
		documentedCall{operation: "reconcile", role: admin, query: true, want: 404}, // of another item
	)
	all = append(all, webhooksInExamples(t, ids)...)
	return append(all,
		documentedCall{operation: "exportBuyer", role: admin, want: 200},
		documentedCall{operation: "eraseBuyer", role: admin, want: 200},
		documentedCall{operation: "eraseBuyer", role: admin, want: 200},
		documentedCall{operation: "closeItem", role: admin, want: 200},
		documentedCall{operation: "resumeItem", role: admin, want: 409},
	)
}

// moneyInExamples are the calls about alice's order, and a late amount of bob's.
func moneyInExamples(t *testing.T, ids map[string]string) []documentedCall {
	t.Helper()
	const buyer, admin, service = auth.RoleBuyer, auth.RoleAdmin, auth.RoleService
	return []documentedCall{
		{operation: "recordPayment", role: service, want: 200},
		{operation: "getOrder", role: buyer, sub: "alice", want: 200},
		{operation: "getOrder", role: admin, want: 200},
		{operation: "getOrder", role: service, want: 200},
		{operation: "listOrders", role: buyer, sub: "alice", want: 200},
		{operation: "listOrders", role: admin, query: true, want: 200},
		{operation: "listPayments", role: admin, query: true, want: 200, keep: func(a *answer) {
			var page struct{ Payments []struct{ ID int64 } }
			a.decode(t, &page)
			if len(page.Payments) != 1 {
				t.Fatalf("late payments: %s", a.Body)
			}
			ids["payment"] = strconv.FormatInt(page.Payments[0].ID, 10)
		}},
		{operation: "markPaymentRefunded", role: admin, want: 200},
		{operation: "refundOrder", role: admin, body: "restock", want: 200},
		{operation: "refundOrder", role: admin, body: "keep", want: 409},
	}
}

// webhooksInExamples are the calls about a webhook.
func webhooksInExamples(t *testing.T, ids map[string]string) []documentedCall {
	t.Helper()
	const admin = auth.RoleAdmin
	return []documentedCall{
		{operation: "createWebhook", role: admin, body: "some", want: 201, keep: func(a *answer) {
			var made struct{ ID string }
			a.decode(t, &made)
			ids["webhook"] = made.ID
		}},
		{operation: "listWebhooks", role: admin, want: 200},
		{operation: "getWebhook", role: admin, want: 200},
		{operation: "testWebhook", role: admin, want: 202, keep: func(a *answer) {
			var sent struct{ Event string }
			a.decode(t, &sent)
			ids["event"] = sent.Event
		}},
		{operation: "listDeliveries", role: admin, want: 200},
		{operation: "listDeliveries", role: admin, query: true, want: 200},
		{operation: "redeliverEvent", role: admin, want: 202},
		{operation: "changeWebhook", role: admin, want: 200},
		{operation: "testWebhook", role: admin, want: 409}, // it is disabled
		{operation: "rotateWebhookSecret", role: admin, want: 200},
		{operation: "deleteWebhook", role: admin, want: 204},
	}
}
