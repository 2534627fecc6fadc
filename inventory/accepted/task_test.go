package accepted

import (
	"slices"
	"testing"
)

func TestOrdersOf(t *testing.T) {
	t.Parallel()
	single := func(id, task, payload string) []Order {
		return []Order{{OrderID: id, TaskID: task, Payload: payload}}
	}
	for _, c := range []struct {
		name, task, payload string
		want                []Order
	}{
		{"a parcel", "t", "p1\t7.8\na\tx\ty\nb\tz", []Order{
			{OrderID: "a", TaskID: "t", Payload: "x\ty", Stamp: "7.8"}, {OrderID: "b", TaskID: "t", Payload: "z", Stamp: "7.8"},
		}},
		{"without a stamp", "t", "p1\t\na\tx", []Order{{OrderID: "a", TaskID: "t", Payload: "x"}}},
		{"one order", "id", "2\tx", single("id", "id", "2\tx")},
		{"split off a parcel", "o:id", "2\tx", single("id", "o:id", "2\tx")},
		{"a line without an order", "t", "p1\t7.8\na\tx\nb", single("t", "t", "p1\t7.8\na\tx\nb")},
		{"no lines", "t", "p1\t7.8\n", single("t", "t", "p1\t7.8\n")},
		{"nothing", "t", "", single("t", "t", "")},
	} {
		if got := OrdersOf(c.task, []byte(c.payload)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	a := Order{OrderID: "id", Payload: "2\tx", Stamp: "7.8"}
	if id, payload := SingleTask(a); id != "o:id" || string(payload) != "2\tx\t7.8" {
		t.Errorf("split off: %q %q", id, payload)
	}
}

// BenchmarkHotPath_OrdersOf reads a task with 100 orders.
func BenchmarkHotPath_OrdersOf(b *testing.B) {
	const taskID, orders = "0197a0f2-3c4d-7abc-8def-012345670000", 100
	const line = "2\titem-1\tbuyer-0000001\t1\t4900\tEUR\t1790000000000\t0123456789abcdef\t0197a0f2-3c4d-7abc-8def-000000000001"
	payload := []byte(parcelHead + "1790000000.1048577\n")
	for i := range orders {
		payload = AppendLine(payload, i == 0, string(AppendOrderID(nil, taskID, i+1)), line)
	}
	b.ReportAllocs()
	for b.Loop() {
		if got := len(OrdersOf(taskID, payload)); got != orders {
			b.Fatal(got)
		}
	}
}

func TestPackOrderID(t *testing.T) {
	t.Parallel()
	const text = "0197a0f2-3c4d-7abc-8def-0123456789ab"
	if got := packOrderID(text).text(); got != text {
		t.Errorf("%s comes back as %s", text, got)
	}
	for _, none := range []string{"", "order-1", text + "0", text[:35] + "g", "0197a0f23-c4d-7abc-8def-0123456789ab"} {
		if id := packOrderID(none); id != (orderID{}) {
			t.Errorf("%q is packed as %x", none, id)
		}
	}
}
