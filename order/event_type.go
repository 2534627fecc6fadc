package order

// EventType is the type of an event that webhooks send.
type EventType string

// The types of events. An order's event contains the order in its state at that time.
const (
	EventConfirmed EventType = "order.confirmed"
	EventPaid      EventType = "order.paid"
	EventRefunded  EventType = "order.refunded"
	EventCancelled EventType = "order.cancelled"
	EventExpired   EventType = "order.expired"
	EventRejected  EventType = "order.rejected"
	// EventSoldOut means that the last unit of an item was sold. It is sent again if units
	// are released or added and the last one is sold again.
	EventSoldOut EventType = "item.sold_out"
	// EventLate means that a payment arrived which pays no order, for any reason, and must
	// be refunded.
	EventLate EventType = "payment.late"
	// EventTest is sent to one endpoint when an admin requests it.
	EventTest EventType = "webhook.test"
)

// EventTypes are the events that an endpoint may subscribe to.
var EventTypes = []EventType{
	EventConfirmed, EventPaid, EventRefunded, EventCancelled, EventExpired, EventRejected, EventSoldOut, EventLate,
}
