package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/store/database"
	"flashsale/queue"
)

// DeadSelection selects dead letters.
type DeadSelection struct {
	Group string // the id of a DeadGroup; empty: all letters
	// Before selects the letters that died before it. Zero, or a time to come: those that are
	// dead now. A letter that dies again after a retry is not selected again.
	Before time.Time
}

// BulkResult is the result of one call.
type BulkResult struct {
	Matched int          // letters that were selected
	Done    []DeadLetter // those that were resolved: ID, Queue, Type, Orders and DiedAt
	Failed  int          // those that could not be, and stay
	// Remaining is how many letters have not been examined yet; negative: unknown.
	Remaining int
	Before    time.Time // of the selection
	Next      *DeadPlace
	// Err is why letters failed, or why the call ended early; nil: neither.
	Err error
}

// The bounds of one call.
const (
	bulkLetters  = 1000
	bulkExamined = 20_000
	bulkTime     = time.Second
	// retryPage is how many letters one script retries.
	retryPage = 256
	// discardPage and discardOrders bound the letters whose orders are rejected together.
	discardPage   = 256
	discardOrders = 1024
)

// RetryMany retries selected dead letters from a place on, the earliest of each queue first,
// and returns where the next call continues. It handles at most about 1,000 letters, or ends
// after about a second. It may be repeated. If it can change nothing, the error is
// inventory.ErrOverloaded because the queue is full, or inventory.ErrUnavailable.
func (b *Backlog) RetryMany(ctx context.Context, sel DeadSelection, at DeadPlace) (BulkResult, error) {
	return b.bulk(ctx, sel, at, bulkAction{page: retryPage, orders: bulkExamined * retryPage, do: b.retryPage})
}

// DiscardMany discards selected dead letters, as RetryMany retries them. Each is discarded as
// by Discard: its orders are rejected first, and it stays if one of them cannot be. If it can
// change nothing, the error is database.ErrUnavailable or inventory.ErrUnavailable.
func (b *Backlog) DiscardMany(ctx context.Context, sel DeadSelection, at DeadPlace) (BulkResult, error) {
	return b.bulk(ctx, sel, at, bulkAction{page: discardPage, orders: discardOrders, do: b.discardPage})
}

// bulkAction is what is done to pages of letters.
type bulkAction struct {
	page   int // letters
	orders int // orders of a page, which has at least one letter
	// do resolves letters that died no later than by, and returns what became of each. A call
	// ends with an open letter.
	do func(ctx context.Context, q NamedQueue, letters []queue.TaskInfo, by time.Time) (results []letterResult, err error)
}

type letterResult int

const (
	resultOpen   letterResult = iota // not tried, or with an unknown result
	resultDone                       // resolved by this call
	resultGone                       // resolved by another call
	resultFailed                     // it stays
)

// bulk applies an action to selected letters.
func (b *Backlog) bulk(ctx context.Context, sel DeadSelection, at DeadPlace, action bulkAction) (BulkResult, error) {
	now, err := b.now(ctx)
	if err != nil {
		return BulkResult{}, err
	}
	// Letters die in whole milliseconds. With a later bound, a letter could be selected again
	// after each death.
	r := BulkResult{Before: now.Add(time.Millisecond), Remaining: -1}
	if !sel.Before.IsZero() && sel.Before.Before(r.Before) {
		r.Before = sel.Before.Add(time.Millisecond - 1).Truncate(time.Millisecond).UTC()
	}
	until := time.Now().Add(b.bulkTime)
	for examined := 0; at.Queue < len(b.queues) && r.Matched < bulkLetters && examined < bulkExamined && time.Now().Before(until); {
		p, err := b.bulkPage(ctx, &r, sel.Group, at, action)
		if r.Err == nil {
			r.Err = err
		}
		if p.stopped && len(r.Done)+r.Failed == 0 {
			return r, err
		}
		at = *at.at(p.after)
		if p.end {
			at = DeadPlace{Queue: at.Queue + 1}
		}
		if p.stopped {
			break
		}
		examined += p.examined
	}
	if at.Queue >= len(b.queues) {
		r.Remaining = 0
		return r, nil
	}
	r.Next = &at
	if sel.Group == "" {
		r.Remaining = b.remaining(ctx, at, r.Before)
	}
	return r, nil
}

// bulkedPage is what happened to a page of letters.
type bulkedPage struct {
	after    queue.Place // where to continue
	examined int         // letters
	end      bool        // the queue has no more
	stopped  bool        // not all of the page was done
}

// bulkPage applies an action to the selected letters of the page at a place.
func (b *Backlog) bulkPage(ctx context.Context, r *BulkResult, group string, at DeadPlace, action bulkAction) (bulkedPage, error) {
	out := bulkedPage{after: at.after()}
	q, by := b.queues[at.Queue], r.Before.Add(-time.Millisecond)
	limit := min(action.page, bulkLetters-r.Matched)
	want := briefPage
	if group == "" {
		want = limit
	}
	briefs, err := q.Queue.List(ctx, queue.Query{State: queue.StateDead, After: at.after(), DiedBy: by, Limit: want, Fields: queue.BriefFields})
	if err != nil {
		out.stopped = true
		return out, unreachable(q.Name, err)
	}
	var page []queue.TaskInfo
	page, out.examined = selectBriefs(briefs.Tasks, group, limit, action.orders)
	out.end = out.examined == len(briefs.Tasks) && briefs.More == 0
	if out.examined == 0 {
		return out, nil
	}
	out.after = briefs.Tasks[out.examined-1].Place()
	if len(page) == 0 {
		return out, nil
	}
	results, err := action.do(ctx, q, page, by)
	r.count(q.Name, page, results)
	if open := slices.Index(results, resultOpen); open >= 0 {
		out.after, out.end, out.stopped = at.after(), false, true
		if open > 0 { // the next call begins with this letter
			out.after = page[open-1].Place()
		}
	}
	return out, err
}

// selectBriefs returns the first letters of a group, bounded in number and in the sum of
// their orders, and how many letters it has examined.
func selectBriefs(briefs []queue.TaskInfo, group string, limit, orders int) (page []queue.TaskInfo, examined int) {
	for i := range briefs {
		brief := &briefs[i]
		if group != "" && groupOf(brief.Reason) != group {
			continue
		}
		orders -= ordersIn(brief)
		if len(page) == limit || len(page) > 0 && orders < 0 {
			return page, i
		}
		page = append(page, *brief)
	}
	return page, len(briefs)
}

// count adds the results of a page.
func (r *BulkResult) count(name string, page []queue.TaskInfo, results []letterResult) {
	for i := range page {
		n := &page[i]
		switch results[i] {
		case resultOpen:
			continue
		case resultDone:
			r.Done = append(r.Done, DeadLetter{Queue: name, ID: n.ID, Type: typeOf(n.Type), Orders: ordersIn(n), DiedAt: n.At})
		case resultFailed:
			r.Failed++
		case resultGone:
		}
		r.Matched++
	}
}

func ordersIn(n *queue.TaskInfo) int {
	if !order.IsPurchase(n.Type) && n.Type != order.ExpiryType {
		return 0
	}
	return max(1, n.Entries)
}

// now returns the latest of the queues' times, which the letters have.
func (b *Backlog) now(ctx context.Context) (latest time.Time, err error) {
	for _, q := range b.queues {
		s, err := q.Queue.Stats(ctx)
		if err != nil {
			return latest, unreachable(q.Name, err)
		}
		if s.At.After(latest) {
			latest = s.At
		}
	}
	return latest, nil
}

// remaining counts the letters after a position that died before a time; -1 if Redis does not
// answer.
func (b *Backlog) remaining(ctx context.Context, at DeadPlace, before time.Time) int {
	sum := 0
	for ; at.Queue < len(b.queues); at = (DeadPlace{Queue: at.Queue + 1}) {
		none, err := b.queues[at.Queue].Queue.List(ctx, queue.Query{State: queue.StateDead, After: at.after(), DiedBy: before.Add(-time.Millisecond)})
		if err != nil {
			return -1
		}
		sum += none.More
	}
	return sum
}

func idsOf(letters []queue.TaskInfo) []string {
	ids := make([]string, len(letters))
	for i := range letters {
		ids[i] = letters[i].ID
	}
	return ids
}

func (b *Backlog) retryPage(ctx context.Context, q NamedQueue, letters []queue.TaskInfo, by time.Time) ([]letterResult, error) {
	results := make([]letterResult, len(letters))
	status, err := q.Queue.RunNow(ctx, by, idsOf(letters)...)
	for i, s := range status {
		if s == queue.StatusOK {
			results[i] = resultDone
		} else if s == queue.StatusMissing {
			results[i] = resultGone
		}
	}
	switch {
	case errors.Is(err, queue.ErrFull):
		return results, fmt.Errorf("queue %s: %w", q.Name, inventory.ErrOverloaded)
	case err != nil:
		return results, unreachable(q.Name, err)
	}
	return results, nil
}

func (b *Backlog) discardPage(ctx context.Context, q NamedQueue, letters []queue.TaskInfo, _ time.Time) ([]letterResult, error) {
	results := make([]letterResult, len(letters))
	purchases := slices.DeleteFunc(slices.Clone(letters), func(n queue.TaskInfo) bool { return !order.IsPurchase(n.Type) })
	payloads, err := q.Queue.List(ctx, queue.Query{IDs: idsOf(purchases), Fields: queue.PayloadField})
	if err != nil {
		return results, unreachable(q.Name, err)
	}
	var tasks []order.Task
	var of []int // the letter of each
	for i := range letters {
		if !order.IsPurchase(letters[i].Type) {
			continue
		}
		payload := payloads.Tasks[0].Payload
		payloads.Tasks = payloads.Tasks[1:]
		for _, t := range rejectable(letters[i].Type, letters[i].ID, payload) {
			tasks, of = append(tasks, t), append(of, i)
		}
	}
	rejected, failed, rerr := b.rejectAll(ctx, tasks)
	kept, had := make([]bool, len(letters)), make([]bool, len(letters))
	for i := range tasks {
		kept[of[i]] = kept[of[i]] || failed[tasks[i].ID]
		had[of[i]] = had[of[i]] || rejected[tasks[i].ID]
	}
	var discard []queue.TaskInfo
	var places []int
	for i := range letters {
		switch {
		case !kept[i]:
			discard, places = append(discard, letters[i]), append(places, i)
		case !errors.Is(rerr, database.ErrUnavailable):
			results[i] = resultFailed
		}
	}
	status, err := q.Queue.DeleteDead(ctx, idsOf(discard)...)
	for j, s := range status {
		i := places[j]
		switch {
		case s == queue.StatusOK, s == queue.StatusMissing && had[i]: // see Discard
			results[i] = resultDone
		case s == queue.StatusMissing:
			results[i] = resultGone
		}
	}
	if err != nil {
		err = unreachable(q.Name, err)
	}
	return results, errors.Join(rerr, err)
}
