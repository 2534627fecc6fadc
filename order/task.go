package order

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"flashsale/internal/requestid"
	"flashsale/inventory/accepted"
	"flashsale/queue"
)

// Task is an accepted purchase on its way through the queue to the database. A task of the
// queue has those of one batch: see accepted.OrdersOf.
type Task struct {
	ID             string
	ItemID         string
	UserID         string
	Quantity       int64
	UnitPriceMinor int64
	Currency       string
	CreatedAt      int64 // Unix milliseconds
	// Origin is the API process in which a request waits for the commit; empty: none does.
	Origin string
	// RequestID is the id of the request, for the log. It has only letters, digits and ".", "_"
	// and "-". Empty: the order was accepted by a version that did not store it.
	RequestID string
	// Trace is the trace of a sampled purchase, tracing.Parent.String; empty: not sampled.
	Trace          string
	IdempotencyKey string
	// Epoch and Sequence are set when Redis accepts the order: the epoch of the state in
	// Redis, and the number of the script call in the sale. 0 before that.
	Epoch, Sequence int64
}

// taskVersion starts every payload, so that a later format can be distinguished while both
// are in the queue.
const taskVersion = "2"

// unstamped is the version of payloads from before the purchase script appended its stamp.
const unstamped = "1"

// taskFields is the number of fields of a payload without the script's stamp.
const taskFields = 9

// ErrTaskMalformed means that a payload is not that of a purchase.
var ErrTaskMalformed = errors.New("order: malformed task payload")

// AppendTask writes the payload: fields separated by tabs. No field can contain a tab: ids
// and users are restricted, and an idempotency key is visible ASCII. The payload has a
// third of the size of JSON and is parsed without an allocation per field.
func AppendTask(b []byte, t *Task) []byte {
	b = append(b, taskVersion...)
	b = append(b, '\t')
	b = append(b, t.ItemID...)
	b = append(b, '\t')
	b = append(b, t.UserID...)
	b = append(b, '\t')
	b = strconv.AppendInt(b, t.Quantity, 10)
	b = append(b, '\t')
	b = strconv.AppendInt(b, t.UnitPriceMinor, 10)
	b = append(b, '\t')
	b = append(b, t.Currency...)
	b = append(b, '\t')
	b = strconv.AppendInt(b, t.CreatedAt, 10)
	b = append(b, '\t')
	b = appendSource(b, t)
	b = append(b, '\t')
	return append(b, t.IdempotencyKey...)
}

// appendSource writes the field about the request. Earlier versions take it as opaque text, the
// process to notify; a further field would make them reject the order. Its forms:
//
//	<process>            a request waits there; its id is unknown
//	<process>-<number>   a request with this id waits
//	<process>/<id>       a request waits, whose id is the client's
//	~<id>                no request waits
//
// A sampled purchase has a semicolon and its trace after that. The generated ids begin with the
// name of their process, so an id costs few bytes.
func appendSource(b []byte, t *Task) []byte {
	switch {
	case t.RequestID == "":
		b = append(b, t.Origin...)
	case t.Origin == "":
		b = append(append(b, '~'), t.RequestID...)
	case generatedBy(t.Origin, t.RequestID):
		b = append(b, t.RequestID...)
	default:
		b = append(append(append(b, t.Origin...), '/'), t.RequestID...)
	}
	if t.Trace != "" {
		b = append(append(b, ';'), t.Trace...)
	}
	return b
}

// generatedBy reports whether a process has generated a request id.
func generatedBy(process, id string) bool {
	return len(id) > len(process)+1 && id[len(process)] == '-' && id[:len(process)] == process
}

// parseSource reads what appendSource has written. Errors: ErrTaskMalformed.
func (t *Task) parseSource(source string) error {
	text, ok := source, true
	if end := strings.IndexByte(source, ';'); end >= 0 {
		text, t.Trace = source[:end], source[end+1:]
		ok = t.Trace != ""
	}
	dash, slash := strings.IndexByte(text, '-'), strings.IndexByte(text, '/')
	switch {
	case text != "" && text[0] == '~':
		t.RequestID = text[1:]
		ok = ok && t.RequestID != ""
	case slash >= 0 && (dash < 0 || slash < dash):
		t.Origin, t.RequestID = text[:slash], text[slash+1:]
		ok = ok && slash > 0 && t.RequestID != "" && !generatedBy(t.Origin, t.RequestID)
	case dash >= 0:
		t.Origin, t.RequestID = text[:dash], text
		ok = ok && dash > 0 && dash < len(text)-1
	default:
		t.Origin = text
	}
	if !ok {
		return fmt.Errorf("%w: source %q", ErrTaskMalformed, source)
	}
	return nil
}

// Payload encodes the task for the queue.
func (t *Task) Payload() string {
	var buf [256]byte
	return string(AppendTask(buf[:0], t))
}

// maxPayload is the length of the longest payload that is read, in bytes. The longest fields
// that the API accepts need less than half of it, and a row's indexes have no room for more.
const maxPayload = 2048

// ParseAccepted reads an order of a task. A malformed payload can never become an order.
func ParseAccepted(a accepted.Order) (Task, error) {
	if len(a.Payload) > maxPayload {
		return Task{}, fmt.Errorf("%w: %d bytes, want at most %d", ErrTaskMalformed, len(a.Payload), maxPayload)
	}
	for _, text := range []string{a.OrderID, a.Payload} {
		if err := CheckText(text); err != nil {
			return Task{}, fmt.Errorf("%w: %w", ErrTaskMalformed, err)
		}
	}
	var f [taskFields]string
	rest, n := a.Payload, 0
	for ; n < taskFields-1; n++ {
		field, after, ok := strings.Cut(rest, "\t")
		if !ok {
			break
		}
		f[n], rest = field, after
	}
	if n != taskFields-1 || f[0] != taskVersion && f[0] != unstamped {
		return Task{}, fmt.Errorf("%w: version %q, %d fields", ErrTaskMalformed, f[0], n+1)
	}
	key, stamp, stamped := strings.Cut(rest, "\t")
	if !stamped && a.Stamp != "" {
		stamp, stamped = a.Stamp, true
	}
	if stamped && f[0] == unstamped {
		return Task{}, fmt.Errorf("%w: version %q has a stamp", ErrTaskMalformed, f[0])
	}
	t := Task{ID: a.OrderID, ItemID: f[1], UserID: f[2], Currency: f[5], IdempotencyKey: key}
	err := t.parseSource(f[sourceField])
	if err != nil {
		return Task{}, err
	}
	if stamped {
		if t.Epoch, t.Sequence, err = parseStamp(stamp); err != nil {
			return Task{}, err
		}
	}
	if t.Quantity, err = parseWhole(f[3]); err != nil {
		return Task{}, fmt.Errorf("%w: quantity: %w", ErrTaskMalformed, err)
	}
	if t.UnitPriceMinor, err = parseWhole(f[4]); err != nil {
		return Task{}, fmt.Errorf("%w: unit price: %w", ErrTaskMalformed, err)
	}
	if t.CreatedAt, err = parseWhole(f[6]); err != nil {
		return Task{}, fmt.Errorf("%w: created at: %w", ErrTaskMalformed, err)
	}
	return t, nil
}

// The reasons for which Postgres cannot store a text.
var (
	errNUL  = errors.New("a NUL character")
	errUTF8 = errors.New("invalid UTF-8")
)

// CheckText returns an error for text that Postgres cannot store, or compare with. SQLite can, but the
// shop may move to Postgres.
func CheckText(text string) error {
	switch {
	case strings.IndexByte(text, 0) >= 0:
		return errNUL
	case !utf8.ValidString(text):
		return errUTF8
	}
	return nil
}

// parseStamp reads the stamp that the purchase script appended to a payload.
func parseStamp(stamp string) (epoch, sequence int64, err error) {
	first, second, _ := strings.Cut(stamp, ".")
	if epoch, err = parseWhole(first); err != nil {
		return 0, 0, fmt.Errorf("%w: epoch: %w", ErrTaskMalformed, err)
	}
	if sequence, err = parseWhole(second); err != nil {
		return 0, 0, fmt.Errorf("%w: sequence: %w", ErrTaskMalformed, err)
	}
	return epoch, sequence, nil
}

// errSpelling says that a number is not written as numbers of a payload are.
var errSpelling = errors.New("unexpected sign or leading zeros")

// parseWhole reads a number in the only form that AppendTask and the purchase script write.
func parseWhole(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, err
	}
	if digits := strings.TrimPrefix(text, "-"); text[0] == '+' || digits[0] == '0' && text != "0" {
		return 0, fmt.Errorf("%q: %w", text, errSpelling)
	}
	return n, nil
}

// sourceField is the index of the source among a payload's fields.
const sourceField = 7

// Awaited reports whether a request waits for the order's commit: then the payload names
// the request's process. An unreadable payload is not awaited.
func Awaited(payload string) bool {
	for range sourceField {
		_, rest, ok := strings.Cut(payload, "\t")
		if !ok {
			return false
		}
		payload = rest
	}
	return len(payload) > 0 && payload[0] != '\t' && payload[0] != '~' && payload[0] != ';'
}

// Ref names the order and its request in errors.
func (t *Task) Ref() requestid.Order {
	return requestid.Order{OrderID: t.ID, RequestID: t.RequestID}
}

// About returns err with the ids of tasks; see package requestid.
func About(err error, tasks []Task) error {
	return requestid.About(err, len(tasks), func(i int) requestid.Order { return tasks[i].Ref() })
}

// Queued returns the order while its task is in the queue.
func (t *Task) Queued() Order {
	return Order{
		ID: t.ID, ItemID: t.ItemID, UserID: t.UserID, Quantity: t.Quantity,
		UnitPriceMinor: t.UnitPriceMinor, Currency: t.Currency, Status: StatusQueued,
		IdempotencyKey: t.IdempotencyKey, CreatedAt: time.UnixMilli(t.CreatedAt).UTC(),
	}
}

// The types of tasks in the queue of orders.
const (
	PurchaseType = "" // one order, split off a parcel or added by a version without parcels
	ExpiryType   = "expire"
)

// IsPurchase reports whether tasks of a type hold orders that are to be committed.
func IsPurchase(taskType string) bool {
	return taskType == PurchaseType || taskType == accepted.TaskType
}

// ExpiryPrefix starts the id of an expiry task; the id of the task whose orders it expires
// follows. So each of those has one, and its id differs from every order's.
const ExpiryPrefix = "x:"

// ExpiryTask returns the task that expires orders of one item, which were committed from
// one task, unless they are paid by then.
func ExpiryTask(taskID, itemID string, expiresAt int64, orderIDs ...string) queue.Task {
	// The item is only for operators: the orders' rows have all data.
	payload := itemID + "\n" + strings.Join(orderIDs, "\n")
	return queue.Task{
		ID: ExpiryPrefix + taskID, Type: ExpiryType, Payload: []byte(payload),
		Due: time.UnixMilli(expiresAt), Entries: len(orderIDs),
	}
}

// ParseExpiry reads an expiry task: the item and the orders that expire.
func ParseExpiry(id string, payload []byte) (itemID string, orderIDs []string) {
	itemID, list, several := strings.Cut(string(payload), "\n")
	if !several { // added by a version with one expiry task per order
		return itemID, []string{strings.TrimPrefix(id, ExpiryPrefix)}
	}
	return itemID, strings.Split(list, "\n")
}

// Queued reads the orders in a task queue: accepted.Orders.
type Queued interface {
	Find(ctx context.Context, ids ...string) ([]accepted.Order, error)
	Scan(ctx context.Context, fn func(accepted.Order) error) error
	State(ctx context.Context, id string) (queue.State, error)
	Stats(ctx context.Context) (queue.Stats, error)
}

// BuyersQueued finds the queued orders of a buyer: accepted.Index.
type BuyersQueued interface {
	// Orders is accepted.Index.Orders.
	Orders(ctx context.Context, buyer, before string, limit int, fn func(accepted.Order) bool) (more string, err error)
}

// TaskIDs returns the ids of tasks.
func TaskIDs(tasks []Task) []string {
	ids := make([]string, len(tasks))
	for i := range tasks {
		ids[i] = tasks[i].ID
	}
	return ids
}
