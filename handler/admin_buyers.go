package handler

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"flashsale/handler/encode"
	"flashsale/handler/request"
	"flashsale/internal/bucket"
	"flashsale/order"
	"flashsale/order/privacy"
)

// buyerService exports and erases a buyer's personal data.
type buyerService interface {
	// ExportBuyer passes all data about a buyer to the callbacks. Errors: those of
	// privacy.Service.ExportBuyer.
	ExportBuyer(ctx context.Context, user string, to privacy.BuyerRecords) error
	// EraseBuyer replaces a buyer's name by a pseudonym. Errors: those of
	// privacy.Service.EraseBuyer.
	EraseBuyer(ctx context.Context, user string, e privacy.Erasure) (privacy.Erased, error)
}

const (
	// maxEraseReason bounds the reason of an erasure, in characters.
	maxEraseReason = 500
	// exportChunk is the size of the buffer of an export, in bytes.
	exportChunk = 8 << 10
	// buyerLimit bounds an export or an erasure. An erasure waits for the lock of each item, and
	// an export over a slow connection takes longer than the server allows for a purchase.
	buyerLimit = 5 * time.Minute
)

// buyerRoutes export and erase buyers' data.
type buyerRoutes struct {
	buyers buyerService
	now    func() time.Time
	log    zerolog.Logger
}

// export answers GET /v1/admin/buyers/{user}.
func (rs *buyerRoutes) export(q *call) error {
	user := q.c.Param("user")
	q.takeTime(buyerLimit, rs.log)
	x := &export{q: q}
	q.out = encode.TextField(q.out[:0], `{"user_id":`, user)
	q.out = encode.TimeField(q.out, `,"exported_at":`, rs.now())
	err := rs.buyers.ExportBuyer(q.ctx(), user, x.records())
	if err == nil {
		err = x.done()
	}
	if err != nil && q.c.Writer.Written() {
		// A partial export must not look complete, so the connection is closed.
		rs.log.Warn().Str("request_id", q.requestID()).Err(err).Msg("export aborted")
		panic(http.ErrAbortHandler)
	}
	return err
}

// exportSections are the members of an export that are lists, in their order.
var exportSections = [...]string{"orders", "queued", "holdings", "payments", "returns", "audit"}

// export writes a document with several lists, one after another.
type export struct {
	q     *call
	open  int // the number of sections begun
	first bool
}

// begin begins a section, after empty ones before it.
func (x *export) begin(section string) {
	for x.open == 0 || exportSections[x.open-1] != section {
		x.next()
	}
}

func (x *export) next() {
	b := x.q.out
	if x.open > 0 {
		b = append(b, ']')
	}
	b = append(b, `,"`...)
	b = append(b, exportSections[x.open]...)
	x.q.out = append(b, `":[`...)
	x.open++
	x.first = true
}

// add adds a record to a section, and sends the buffer when it is full.
func (x *export) add(section string, record func(b []byte) []byte) error {
	x.begin(section)
	if !x.first {
		x.q.out = append(x.q.out, ',')
	}
	x.first = false
	x.q.out = record(x.q.out)
	if len(x.q.out) < exportChunk {
		return nil
	}
	return x.send()
}

func (x *export) send() error {
	err := x.q.writeJSON(http.StatusOK, x.q.out)
	x.q.out = x.q.out[:0]
	return err
}

// done ends the document.
func (x *export) done() error {
	for x.open < len(exportSections) {
		x.next()
	}
	x.q.out = append(x.q.out, "]}\n"...)
	return x.send()
}

// records are the callbacks for each kind of record.
func (x *export) records() privacy.BuyerRecords {
	ofOrder := func(section string) func(order.Order) error {
		return func(o order.Order) error {
			return x.add(section, func(b []byte) []byte {
				b = appendOrder(b, &o)
				return append(encode.TextField(b[:len(b)-1], `,"idempotency_key":`, o.IdempotencyKey), '}')
			})
		}
	}
	return privacy.BuyerRecords{
		Orders: ofOrder("orders"),
		Queued: ofOrder("queued"),
		Holdings: func(item string, quantity int64) error {
			return x.add("holdings", func(b []byte) []byte {
				b = encode.TextField(b, `{"item_id":`, bucket.Item(item))
				return append(encode.IntField(b, `,"quantity":`, quantity), '}')
			})
		},
		Payments: func(p order.PaymentRecord) error {
			return x.add("payments", func(b []byte) []byte { return appendPayment(b, &p) })
		},
		Releases: func(r privacy.ReleaseRecord) error {
			return x.add("returns", func(b []byte) []byte {
				b = encode.TextField(b, `{"order_id":`, r.OrderID)
				b = encode.TextField(b, `,"item_id":`, bucket.Item(r.ItemID))
				b = encode.TextField(b, `,"idempotency_key":`, r.IdempotencyKey)
				b = encode.IntField(b, `,"quantity":`, r.Quantity)
				return append(encode.TimeField(b, `,"created_at":`, r.CreatedAt), '}')
			})
		},
		Audit: func(a order.AuditEntry) error {
			return x.add("audit", func(b []byte) []byte { return appendAuditEntry(b, &a) })
		},
	}
}

// erase answers POST /v1/admin/buyers/{user}/erase.
func (rs *buyerRoutes) erase(q *call) error {
	user := q.c.Param("user")
	reason, err := readEraseReason(q.in, user)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(q.ctx(), buyerLimit)
	defer cancel()
	q.takeTime(buyerLimit, rs.log)
	done, err := rs.buyers.EraseBuyer(ctx, user, privacy.Erasure{Actor: q.identity.Subject, Reason: reason, RequestID: q.requestID()})
	if err != nil {
		return reworded(err, problemNotErased)
	}
	b := append(q.out[:0], '{')
	if done.Pseudonym != "" {
		b = append(encode.TextField(b, `"pseudonym":`, done.Pseudonym), ',')
	}
	q.out = append(encode.IntField(b, `"orders":`, int64(done.Orders)), '}')
	return q.json(http.StatusOK)
}

// readEraseReason reads and checks the body of an erasure. The reason is stored, so it must not
// contain the erased name.
func readEraseReason(body []byte, user string) (string, error) {
	f := request.ReadFields(body)
	reason := f.Text("reason", true)
	if err := f.Done(); err != nil {
		return "", err
	}
	if err := request.CheckText("reason", reason, 1, maxEraseReason, false); err != nil {
		return "", err
	}
	if names(reason, user) {
		return "", request.ErrFieldRange.With("reason", "reason is kept, so it must not name the buyer.")
	}
	return reason, nil
}

// names reports whether a text contains a name as a whole word.
func names(text, name string) bool {
	within := func(i int) bool {
		if i < 0 || i >= len(text) {
			return false
		}
		c := text[i]
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
	}
	for from := 0; ; from++ {
		at := strings.Index(text[from:], name)
		if at < 0 {
			return false
		}
		from += at
		if !within(from-1) && !within(from+len(name)) {
			return true
		}
	}
}
