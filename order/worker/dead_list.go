package worker

import (
	"context"
	"strings"
	"time"

	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/queue"
)

// DeadLetter is a task that failed for good.
type DeadLetter struct {
	Queue    string
	ID       string
	Type     string // "purchase", "expire", or what its queue calls it
	Orders   int    // how many it is about
	OrderID  string // empty unless it is about one order
	ItemID   string // empty where the task cannot be read
	Attempts int
	DiedAt   time.Time
	Reason   string // why the last attempt failed
	Group    string // the id of its group; see DeadGroup
}

// DeadPlace is where a call continues in the dead letters; the zero value is the start.
type DeadPlace struct {
	Queue int // number of the queue, in the order of Depths
	// DiedAt and ID are those of the letter behind which the call continues; zero: the start
	// of the queue.
	DiedAt time.Time
	ID     string
}

func (p DeadPlace) after() queue.Place { return queue.Place{At: p.DiedAt, ID: p.ID} }

// at is the place behind a letter of the same queue.
func (p DeadPlace) at(after queue.Place) *DeadPlace { return &DeadPlace{p.Queue, after.At, after.ID} }

const (
	// briefPage is how many letters are read without their payloads in one call of Redis.
	briefPage = 512
	// maxFiltered is how many letters one page of a group examines at most.
	maxFiltered = 10_000
)

// Dead lists up to limit (1 to 512) dead letters from a place on, queue by queue, the
// latest of each first; those of one group, unless it is empty. next is the place of the
// next page, or nil if there is none. A page may be shorter than limit, and one of a group
// even empty, because one call reads a bounded number of letters and bytes. Letters that are
// removed between two pages do not shift the places.
func (b *Backlog) Dead(ctx context.Context, group string, at DeadPlace, limit int) (letters []DeadLetter, next *DeadPlace, err error) {
	if group != "" {
		return b.deadOf(ctx, group, at, limit)
	}
	for ; at.Queue < len(b.queues); at = (DeadPlace{Queue: at.Queue + 1}) {
		if len(letters) == limit {
			return letters, &at, nil
		}
		q := b.queues[at.Queue]
		page, err := q.Queue.List(ctx, queue.Query{State: queue.StateDead, After: at.after(), Limit: limit - len(letters), Reverse: true})
		if err != nil {
			return nil, nil, unreachable(q.Name, err)
		}
		for i := range page.Tasks {
			letters = append(letters, deadLetter(q.Name, &page.Tasks[i]))
		}
		if page.More > 0 {
			return letters, at.at(page.Next), nil
		}
	}
	return letters, nil, nil
}

// deadOf is Dead for one group.
func (b *Backlog) deadOf(ctx context.Context, group string, at DeadPlace, limit int) (letters []DeadLetter, next *DeadPlace, err error) {
	examined := 0
	for ; at.Queue < len(b.queues); at = (DeadPlace{Queue: at.Queue + 1}) {
		q := b.queues[at.Queue]
		for {
			if len(letters) >= limit || examined >= maxFiltered {
				return letters, &at, nil
			}
			briefs, err := q.Queue.List(ctx, queue.Query{State: queue.StateDead, After: at.after(), Limit: briefPage, Reverse: true, Fields: queue.BriefFields})
			if err != nil {
				return nil, nil, unreachable(q.Name, err)
			}
			ids, n := idsOfGroup(group, briefs.Tasks, limit-len(letters))
			found, err := q.Queue.List(ctx, queue.Query{IDs: ids})
			if err != nil {
				return nil, nil, unreachable(q.Name, err)
			}
			for i := range found.Tasks {
				if found.Tasks[i].State == queue.StateDead {
					letters = append(letters, deadLetter(q.Name, &found.Tasks[i]))
				}
			}
			examined += n
			if n == len(briefs.Tasks) && briefs.More == 0 {
				break
			}
			at = *at.at(briefs.Tasks[n-1].Place())
		}
	}
	return letters, nil, nil
}

// idsOfGroup returns the ids of the first letters of a group, up to limit, and how many letters
// it has examined for that.
func idsOfGroup(group string, briefs []queue.TaskInfo, limit int) (ids []string, examined int) {
	for i := range briefs {
		if len(ids) == limit {
			return ids, i
		}
		if groupOf(briefs[i].Reason) == group {
			ids = append(ids, briefs[i].ID)
		}
	}
	return ids, len(briefs)
}

func deadLetter(name string, d *queue.TaskInfo) DeadLetter {
	l := DeadLetter{Queue: name, ID: d.ID, Type: typeOf(d.Type), Attempts: d.Attempt, DiedAt: d.At, Reason: d.Reason, Group: groupOf(d.Reason)}
	var ids []string
	switch {
	case order.IsPurchase(d.Type):
		for _, a := range accepted.OrdersOf(d.ID, d.Payload) {
			ids = append(ids, a.OrderID)
			if t, err := order.ParseAccepted(a); err == nil {
				l.ItemID = t.ItemID
			}
		}
	case d.Type == order.ExpiryType:
		l.ItemID, ids = order.ParseExpiry(d.ID, d.Payload)
	}
	l.Orders = len(ids)
	if len(ids) == 1 {
		l.OrderID = ids[0]
	}
	return l
}

// typeOf is the type of a task as operators read it.
func typeOf(taskType string) string {
	if order.IsPurchase(taskType) {
		return "purchase"
	}
	return taskType
}

// The bounds of DeadPayload.
const (
	maxPayloadOrders = 256
	maxPayloadRaw    = 2048
)

// DeadPayload is what a dead letter contains.
type DeadPayload struct {
	// Orders are the orders that can be read, up to 256. Those of an expiry have only an id
	// and an item.
	Orders []order.Task
	// Omitted is how many more there are.
	Omitted int
	// Unreadable is how many orders of the task cannot be read.
	Unreadable int
	// Raw is the start of the payload, up to 2,048 bytes, if not all of it can be read.
	Raw   string
	Bytes int // the size of the payload
}

// Letter returns the dead letter with an id, or with the order of that id, and what it
// contains. Errors: ErrTaskNotFound, inventory.ErrUnavailable.
func (b *Backlog) Letter(ctx context.Context, id string) (DeadLetter, DeadPayload, error) {
	var payload DeadPayload
	letter, err := b.find(ctx, id, func(_ *queue.Queue, info *queue.TaskInfo) (queue.Status, error) {
		payload = deadPayload(info)
		return queue.StatusOK, nil
	})
	return letter, payload, err
}

func deadPayload(d *queue.TaskInfo) DeadPayload {
	p := DeadPayload{Bytes: len(d.Payload)}
	readable := true
	switch {
	case order.IsPurchase(d.Type):
		for _, a := range accepted.OrdersOf(d.ID, d.Payload) {
			t, err := order.ParseAccepted(a)
			if err != nil {
				p.Unreadable++
				continue
			}
			p.add(t)
		}
	case d.Type == order.ExpiryType:
		item, ids := order.ParseExpiry(d.ID, d.Payload)
		for _, id := range ids {
			p.add(order.Task{ID: id, ItemID: item})
		}
	default:
		readable = false
	}
	if !readable || p.Unreadable > 0 {
		p.Raw = strings.ToValidUTF8(string(d.Payload[:min(len(d.Payload), maxPayloadRaw)]), "\uFFFD")
	}
	return p
}

func (p *DeadPayload) add(t order.Task) {
	if len(p.Orders) == maxPayloadOrders {
		p.Omitted++
		return
	}
	p.Orders = append(p.Orders, t)
}
