package order

import (
	"testing"

	"flashsale/inventory/accepted"
)

var benchTask = Task{
	ID: "0197a0f2-3c4d-7abc-8def-0123456789ab", ItemID: "item-1", UserID: "buyer-0000001", Quantity: 1, UnitPriceMinor: 4900,
	Currency: "EUR", CreatedAt: 1_790_000_000_000, Origin: "0123456789abcdef", IdempotencyKey: "0197a0f2-3c4d-7abc-8def-000000000001",
}

// BenchmarkHotPath_TaskPayload encodes an order as Service.Place does.
func BenchmarkHotPath_TaskPayload(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if len(benchTask.Payload()) == 0 {
			b.Fatal("empty")
		}
	}
}

// BenchmarkHotPath_ParseAccepted decodes an order as the worker does.
func BenchmarkHotPath_ParseAccepted(b *testing.B) {
	a := accepted.Order{OrderID: benchTask.ID, TaskID: accepted.TaskOf(benchTask.ID), Payload: benchTask.Payload(), Stamp: "1790000000.1048577"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseAccepted(a); err != nil {
			b.Fatal(err)
		}
	}
}
