package handler

import (
	"context"
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"flashsale/handler/encode"
	"flashsale/handler/problem"
	"flashsale/handler/request"
	"flashsale/internal/bucket"
	"flashsale/order"
	"flashsale/order/worker"
)

// deadLetters manages the dead letters.
type deadLetters interface {
	// Dead returns a page of the dead letters of a group (empty: of all) from a place on, and
	// the place of the next page.
	Dead(ctx context.Context, group string, at worker.DeadPlace, limit int) ([]worker.DeadLetter, *worker.DeadPlace, error)
	// Groups groups dead letters by their reasons.
	Groups(ctx context.Context) (worker.DeadGroups, error)
	// Letter returns a dead letter and what it contains. Errors: worker.ErrTaskNotFound.
	Letter(ctx context.Context, id string) (worker.DeadLetter, worker.DeadPayload, error)
	// Retry makes a dead letter an ordinary task again, and returns the letter. Errors:
	// worker.ErrTaskNotFound, inventory.ErrOverloaded.
	Retry(ctx context.Context, id string) (worker.DeadLetter, error)
	// Discard removes a dead letter for good, rejects the orders it would have made,
	// and returns it. Errors: worker.ErrTaskNotFound.
	Discard(ctx context.Context, id string) (worker.DeadLetter, error)
	// RetryMany retries a part of the selected letters. Errors: inventory.ErrOverloaded.
	RetryMany(ctx context.Context, sel worker.DeadSelection, at worker.DeadPlace) (worker.BulkResult, error)
	// DiscardMany discards a part of the selected letters. Errors: database.ErrUnavailable.
	DiscardMany(ctx context.Context, sel worker.DeadSelection, at worker.DeadPlace) (worker.BulkResult, error)
}

// dead answers GET /v1/admin/dead.
func (rs *queueRoutes) dead(q *call) error {
	limit, err := q.query.Limit()
	if err != nil {
		return err
	}
	var at worker.DeadPlace
	if q.query.Has("cursor") {
		if at, err = readPlace(q.query.Get("cursor")); err != nil {
			return err
		}
	}
	group, err := q.query.ID("group", validGroup, problemGroup)
	if err != nil {
		return err
	}
	letters, next, err := rs.tasks.Dead(q.ctx(), group, at, limit)
	if err != nil {
		return err
	}
	b := encode.List(append(q.out[:0], `{"dead":[`...), letters, appendDeadLetter)
	cursor := ""
	if next != nil {
		cursor = placeCursor(next)
	}
	q.out = append(encode.TextField(append(b, ']'), `,"next_cursor":`, cursor), '}')
	return q.json(200)
}

func appendDeadLetter(b []byte, l *worker.DeadLetter) []byte {
	return append(appendLetterFields(append(b, '{'), l), '}')
}

func appendLetterFields(b []byte, l *worker.DeadLetter) []byte {
	b = encode.TextField(b, `"task":`, l.ID)
	b = encode.TextField(b, `,"queue":`, l.Queue)
	b = encode.TextField(b, `,"type":`, l.Type)
	b = encode.IntField(b, `,"orders":`, int64(l.Orders))
	b = encode.TextIfSet(b, `,"order_id":`, l.OrderID)
	b = encode.TextIfSet(b, `,"item_id":`, bucket.Item(l.ItemID))
	b = encode.IntField(b, `,"attempts":`, int64(l.Attempts))
	b = encode.TimeField(b, `,"died_at":`, l.DiedAt)
	b = encode.TextField(b, `,"reason":`, l.Reason)
	return encode.TextField(b, `,"group":`, l.Group)
}

// placeCursor is the cursor of a place in the dead letters: the number of the queue, the time
// of death and the id.
func placeCursor(p *worker.DeadPlace) string {
	died := ""
	if !p.DiedAt.IsZero() {
		died = strconv.FormatInt(p.DiedAt.UnixMilli(), 10)
	}
	return strings.Join([]string{strconv.Itoa(p.Queue), died, base64.RawURLEncoding.EncodeToString([]byte(p.ID))}, ".")
}

// readPlace reads such a cursor. It need not be authenticated, because an admin may see and
// decide about all letters.
func readPlace(cursor string) (at worker.DeadPlace, err error) {
	f := strings.Split(cursor, ".")
	if len(f) != 3 {
		return at, request.ErrCursor
	}
	n, err1 := strconv.ParseUint(f[0], 10, 30)
	id, err2 := base64.RawURLEncoding.DecodeString(f[2])
	if err1 != nil || err2 != nil || len(id) > 255 || (f[1] == "") != (len(id) == 0) {
		return at, request.ErrCursor
	}
	at.Queue, at.ID = int(n), string(id)
	if f[1] != "" {
		if at.DiedAt, err = readMillis(f[1]); err != nil {
			return at, request.ErrCursor
		}
	}
	return at, nil
}

// validTaskID reports whether id is a valid task id.
func validTaskID(id string) bool { return request.VisibleASCII(id, 255) }

// decide answers the routes that decide about one dead letter.
func (rs *queueRoutes) decide(decide func(taskService, context.Context, string) (worker.DeadLetter, error), state string) endpoint {
	return func(q *call) error {
		id := q.c.Param("task")
		letter, err := decide(rs.tasks, q.ctx(), id)
		if err != nil {
			return err
		}
		rs.resolved(q, &letter, state)
		q.out = encode.TextField(q.out[:0], `{"task":`, letter.ID)
		q.out = encode.TextField(q.out, `,"queue":`, letter.Queue)
		q.out = encode.IntField(q.out, `,"orders":`, int64(letter.Orders))
		q.out = append(encode.TextField(q.out, `,"state":`, state), '}')
		return q.json(200)
	}
}

// resolved records who decided about a dead letter.
func (rs *queueRoutes) resolved(q *call, l *worker.DeadLetter, state string) {
	rs.log.Info().Str("task", l.ID).Str("queue", l.Queue).Int("orders", l.Orders).Str("state", state).Str("sub", q.identity.Subject).
		Str("request_id", q.requestID()).Msg("dead letter resolved")
}

// groups answers GET /v1/admin/dead/groups.
func (rs *queueRoutes) groups(q *call) error {
	g, err := rs.tasks.Groups(q.ctx())
	if err != nil {
		return err
	}
	b := encode.List(append(q.out[:0], `{"groups":[`...), g.Groups, func(b []byte, g *worker.DeadGroup) []byte {
		b = encode.TextField(b, `{"id":`, g.ID)
		b = encode.TextField(b, `,"reason":`, g.Reason)
		b = encode.IntField(b, `,"count":`, int64(g.Count))
		b = encode.TimeField(b, `,"first_at":`, g.FirstAt)
		b = encode.TimeField(b, `,"last_at":`, g.LastAt)
		return append(encode.TextField(b, `,"example_task":`, g.Example), '}')
	})
	b = encode.IntField(b, `],"omitted":`, int64(g.Omitted))
	b = encode.IntField(b, `,"counted":`, int64(g.Counted))
	b = encode.IntField(b, `,"total":`, int64(g.Total))
	b = encode.BoolField(b, `,"complete":`, g.Complete)
	q.out = append(encode.TimeField(b, `,"counted_at":`, g.CountedAt), '}')
	return q.json(200)
}

// letter answers GET /v1/admin/dead/{task}/payload.
func (rs *queueRoutes) letter(q *call) error {
	l, p, err := rs.tasks.Letter(q.ctx(), q.c.Param("task"))
	if err != nil {
		return err
	}
	b := appendLetterFields(append(q.out[:0], '{'), &l)
	b = encode.List(append(b, `,"payload":{"orders":[`...), p.Orders, appendDeadOrder)
	b = encode.IntField(b, `],"omitted":`, int64(p.Omitted))
	b = encode.IntField(b, `,"unreadable":`, int64(p.Unreadable))
	b = encode.TextIfSet(b, `,"raw":`, p.Raw)
	q.out = append(encode.IntField(b, `,"bytes":`, int64(p.Bytes)), "}}"...)
	return q.json(200)
}

// appendDeadOrder appends an order of a dead letter. That of an expiry has only two fields.
func appendDeadOrder(b []byte, o *order.Task) []byte {
	b = encode.TextField(b, `{"order_id":`, o.ID)
	b = encode.TextField(b, `,"item_id":`, bucket.Item(o.ItemID))
	if o.UserID != "" {
		b = encode.TextField(b, `,"user_id":`, o.UserID)
		b = encode.IntField(b, `,"quantity":`, o.Quantity)
		b = encode.IntField(b, `,"unit_price_minor":`, o.UnitPriceMinor)
		b = encode.TextField(b, `,"currency":`, o.Currency)
		b = encode.TimeField(b, `,"created_at":`, time.UnixMilli(o.CreatedAt))
		b = encode.TextIfSet(b, `,"request_id":`, o.RequestID)
	}
	return append(b, '}')
}

// bulkLimit bounds a call that decides about many letters. It usually ends after a second.
const bulkLimit = 10 * time.Second

var problemNotAll = problem.New(503, "unavailable", "Dead letters not handled",
	"The part of this call may not have been handled. Repeat the request; it continues where it stopped.").Among(1)

// decideMany answers the routes that decide about many dead letters.
func (rs *queueRoutes) decideMany(decide func(taskService, context.Context, worker.DeadSelection, worker.DeadPlace) (worker.BulkResult, error), state string) endpoint {
	return func(q *call) error {
		sel, at, err := readSelection(q.in, state)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(q.ctx(), bulkLimit)
		defer cancel()
		r, err := decide(rs.tasks, ctx, sel, at)
		if err != nil {
			return reworded(err, problemNotAll)
		}
		orders := 0
		for i := range r.Done {
			orders += r.Done[i].Orders
			rs.resolved(q, &r.Done[i], state)
		}
		if r.Err != nil {
			rs.log.Warn().Str("request_id", q.requestID()).Int("failed", r.Failed).Err(r.Err).Msg("dead letters not resolved")
		}
		b := encode.IntField(q.out[:0], `{"matched":`, int64(r.Matched))
		b = encode.IntField(b, `,"done":`, int64(len(r.Done)))
		b = encode.IntField(b, `,"failed":`, int64(r.Failed))
		b = encode.IntField(b, `,"orders":`, int64(orders))
		if r.Remaining >= 0 {
			b = encode.IntField(b, `,"remaining":`, int64(r.Remaining))
		}
		b = encode.TimeField(b, `,"before":`, r.Before)
		q.out = append(encode.TextField(b, `,"next_cursor":`, bulkCursor(state, sel.Group, &r)), '}')
		return q.json(200)
	}
}

// problemGroup refuses an id of a group.
var problemGroup = problemID.With("group", "A group's id has 16 hexadecimal digits in lower case; GET /v1/admin/dead/groups lists them.")

// validGroup reports whether id is a valid id of a group.
func validGroup(id string) bool {
	return len(id) == 16 && strings.Trim(id, "0123456789abcdef") == ""
}

// readSelection reads and checks the body of a call about many dead letters.
func readSelection(body []byte, state string) (sel worker.DeadSelection, at worker.DeadPlace, err error) {
	f := request.ReadFields(body)
	all, hasAll := f.Bool("all", false)
	sel.Group = f.Text("group", false)
	before, cursor := f.TextIfStated("before"), f.TextIfStated("cursor")
	if err := f.Done(); err != nil {
		return sel, at, err
	}
	switch {
	case !hasAll && !f.Has("group"):
		return sel, at, request.ErrFieldMissing.With("group", "Send the group, or all with the value true.")
	case hasAll && f.Has("group"):
		return sel, at, request.ErrFieldRange.With("all", "Send group or all, not both.")
	case hasAll && !all:
		return sel, at, request.ErrFieldRange.With("all", "all must be true; send group for a part of the dead letters.")
	case !hasAll && !validGroup(sel.Group):
		return sel, at, request.ErrFieldRange.With("group", problemGroup.Detail)
	}
	if before != nil {
		t, ok := parseInstant(*before)
		if !ok {
			return sel, at, request.ErrFieldRange.With("before", "before is an RFC 3339 time such as 2030-01-31T18:00:00Z, in the years 2000 to 2999.")
		}
		sel.Before = t.Add(time.Millisecond - 1).Truncate(time.Millisecond)
	}
	if cursor == nil || *cursor == "" {
		return sel, at, nil
	}
	until, at, err := readBulkCursor(*cursor, state, sel.Group)
	if err != nil || before != nil && sel.Before.Before(until) {
		return sel, at, request.ErrCursor
	}
	sel.Before = until
	return sel, at, nil
}

// everyGroup is the group of a cursor for all letters.
const everyGroup = "all"

// bulkCursor is the cursor of the next call, or "" if there is none: what it decides, the
// group, the bound in time, and the place.
func bulkCursor(state, group string, r *worker.BulkResult) string {
	if r.Next == nil {
		return ""
	}
	if group == "" {
		group = everyGroup
	}
	return strings.Join([]string{state, group, strconv.FormatInt(r.Before.UnixMilli(), 10), placeCursor(r.Next)}, ".")
}

// readBulkCursor reads the cursor of a selection.
func readBulkCursor(cursor, state, group string) (before time.Time, at worker.DeadPlace, err error) {
	if group == "" {
		group = everyGroup
	}
	rest, ok := strings.CutPrefix(cursor, state+"."+group+".")
	until, place, _ := strings.Cut(rest, ".")
	before, err1 := readMillis(until)
	at, err2 := readPlace(place)
	if !ok || err1 != nil || err2 != nil {
		return before, at, request.ErrCursor
	}
	return before, at, nil
}

// readMillis reads a time in milliseconds since 1970, before the year 3000.
func readMillis(text string) (time.Time, error) {
	ms, err := strconv.ParseUint(text, 10, 45)
	return time.UnixMilli(int64(ms)).UTC(), err
}
