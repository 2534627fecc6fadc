package worker

import (
	"testing"

	"flashsale/order"
	"flashsale/queue"
)

// TestFulfiller_Failed_WorkerDied: the failed attempt of a worker that died names its task, because the payload with the orders
// is not known.
func TestFulfiller_Failed_WorkerDied(t *testing.T) {
	t.Parallel()
	var got []Failure
	f := &Fulfiller{observer: Observer{Failed: func(f Failure) { got = append(got, f) }}}
	l := queue.Leased{ID: "task", Attempt: 3, Options: queue.Options{Type: order.PurchaseType}}
	f.failed(l, queue.ErrLeaseLost, true)
	want := Failure{TaskID: "task", Attempt: 3, Dead: true, Err: queue.ErrLeaseLost}
	if len(got) != 1 || got[0] != want {
		t.Fatalf("reported %+v, want %+v", got, want)
	}
}
