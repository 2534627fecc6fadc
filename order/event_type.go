package order

// EventType names what the shop's servers are told of.
type EventType string

// The events. An order's carry the order as it stands then.
const (
	EventConfirmed EventType = "order.confirmed"
	EventPaid      EventType = "order.paid"
	EventRefunded  EventType = "order.refunded"
	EventCancelled EventType = "order.cancelled"
	EventExpired   EventType = "order.expired"
	EventRejected  EventType = "order.rejected"
	// EventSoldOut says that the last unit of an item has an owner. It comes again
	// when units came back, or were added, and the last one is sold again.
	EventSoldOut EventType = "item.sold_out"
	// EventLate says that money came which pays nothing and is to be refunded,
	// whatever the reason.
	EventLate EventType = "payment.late"
	// EventTest is sent to one endpoint when an admin asks for it.
	EventTest EventType = "webhook.test"
)

// EventTypes are the events that an endpoint may ask for.
var EventTypes = []EventType{
	EventConfirmed, EventPaid, EventRefunded, EventCancelled, EventExpired, EventRejected, EventSoldOut, EventLate,
}
