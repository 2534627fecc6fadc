package order

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"flashsale/queue"
)

const (
	// relayEvery is how often the relay looks for what other processes have
	// committed; those of its own wake it.
	relayEvery = time.Second
	// relayLook is how often it goes through all that is pending, for what Redis
	// may have lost.
	relayLook = 30 * time.Second
	// relayPage is how many deliveries are looked at, and enqueued if they are due,
	// in one step.
	relayPage = 512
	// relayBuried is how many tasks that the queue has given up are taken at a time.
	relayBuried = 256
	// EventRetention is how long an event is kept whose deliveries have ended.
	EventRetention = 7 * 24 * time.Hour
	// purgePage is how many events are forgotten in one transaction, and
	// purgePages how many transactions in a row: orders wait for the same writer.
	purgePage  = 500
	purgePages = 20
)

// DeliveryTasks is what the relay needs of the queue of deliveries.
type DeliveryTasks interface {
	Enqueue(ctx context.Context, tasks ...queue.Task) ([]queue.Status, error)
	Cancel(ctx context.Context, ids ...string) ([]queue.State, error)
	List(ctx context.Context, state queue.State, offset, limit int) ([]queue.TaskInfo, error)
}

// OutboxState is how full the outbox is.
type OutboxState struct {
	// Events is how many are kept, counted by their first and last number.
	Events int64
	// OldestPending is the age of the oldest that an endpoint is still owed.
	OldestPending time.Duration
}

// Relay brings the deliveries that the database owes into the queue, and forgets
// what is long done. The database is the truth: what the queue loses is put into
// it again, what is in it twice is refused by its name. One of all processes
// relays; a second one beside it does the same work in vain.
type Relay struct {
	store   *Store
	tasks   DeliveryTasks
	onError func(error)
	// onLook hears how full the outbox is, and a zero state at the end.
	onLook func(OutboxState)
	every  time.Duration // between looks at all that is pending
}

// NewRelay returns a Relay. onError hears of what is tried again, onLook now and
// then of how full the outbox is.
func NewRelay(store *Store, tasks DeliveryTasks, onError func(error), onLook func(OutboxState)) *Relay {
	return &Relay{store: store, tasks: tasks, onError: onError, onLook: onLook, every: relayLook}
}

// Run relays until ctx ends.
func (r *Relay) Run(ctx context.Context) {
	defer r.onLook(OutboxState{})
	var at deliveryPlace
	var look time.Time
	more := false
	for ctx.Err() == nil {
		if now := time.Now(); !now.Before(look) {
			look = now.Add(r.every)
			r.attempt(ctx, r.keep)
			// All that is pending, from the start: what has a task is refused. Where
			// there is so much of it that this takes longer than until the next look,
			// it is gone through to its end first, or that would never be reached.
			if !more {
				at = deliveryPlace{}
			}
		}
		more = false
		r.attempt(ctx, func(ctx context.Context) (err error) {
			at, more, err = r.pass(ctx, at)
			return err
		})
		if more {
			continue
		}
		r.wait(ctx, time.Until(look))
	}
}

// attempt does a part of the work; what fails is done again by a later round.
func (r *Relay) attempt(ctx context.Context, part func(ctx context.Context) error) {
	if err := part(ctx); err != nil && ctx.Err() == nil {
		r.onError(fmt.Errorf("webhooks: %w", err))
	}
}

// wait returns when there may be something to do.
func (r *Relay) wait(ctx context.Context, most time.Duration) {
	timer := time.NewTimer(min(relayEvery, max(most, 0)))
	defer timer.Stop()
	select {
	case <-r.store.told:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// deliveryPlace is the place of a delivery among those that are pending.
type deliveryPlace struct {
	EventSeq   int64
	EndpointID string
}

// pass looks at the next page behind a place, and enqueues what is due of it. It
// returns how far it came, and whether more may follow.
func (r *Relay) pass(ctx context.Context, at deliveryPlace) (deliveryPlace, bool, error) {
	// What is due only after the next look need not be in the queue before it.
	now := r.store.now()
	page, err := r.store.pending(ctx, at, now.Add(2*r.every))
	if err != nil || len(page) == 0 {
		return at, false, err
	}
	last := page[len(page)-1].place()
	more := len(page) == relayPage
	page = slices.DeleteFunc(page, func(p pendingDelivery) bool { return !p.Due })
	tasks := make([]queue.Task, len(page))
	for i := range page {
		tasks[i] = page[i].task(now)
	}
	status, err := r.tasks.Enqueue(ctx, tasks...)
	if err != nil && !errors.Is(err, queue.ErrFull) {
		return at, false, err
	}
	for i := range status {
		if status[i] == queue.StatusFull {
			return at, false, errDeliveriesFull
		}
		at = page[i].place()
	}
	return last, more, nil
}

var errDeliveriesFull = errors.New("order: the queue of deliveries is full; they wait in the database")

// pendingDelivery is a delivery that is still owed.
type pendingDelivery struct {
	EventSeq   int64
	EndpointID string
	EventID    string
	NextAt     int64
	Due        bool // by the time asked for; never for a deleted endpoint
}

func (p *pendingDelivery) place() deliveryPlace { return deliveryPlace{p.EventSeq, p.EndpointID} }

// task is the delivery's task. What is due has no time in it, which Redis would
// compare with a clock of its own.
func (p *pendingDelivery) task(now time.Time) queue.Task {
	t := deliveryTask(p.EventID, p.EndpointID)
	if p.NextAt > now.UnixMilli() {
		t.Due = time.UnixMilli(p.NextAt)
	}
	return t
}

// pending reads a page of the deliveries that are owed, and which are due by then.
// Those that are not count, too: there may be a million of them, of an endpoint
// that is down, and who skips them in the database does so again each time.
func (s *Store) pending(ctx context.Context, after deliveryPlace, by time.Time) ([]pendingDelivery, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var page []pendingDelivery
	err := s.read.WithContext(ctx).Raw(selectPending, by.UnixMilli(), after.EventSeq, after.EndpointID, relayPage).Scan(&page).Error
	if err != nil {
		return nil, wrap("look for deliveries", err)
	}
	return page, nil
}

// The condition on the state is written out, since that is how the database
// knows the index that serves it.
const selectPending = `SELECT d.event_seq, d.endpoint_id, v.id AS event_id, d.next_at,
		d.next_at <= ? AND d.endpoint_id NOT IN (SELECT id FROM webhook_endpoints WHERE deleted_at > 0) AS due
	FROM webhook_deliveries d JOIN webhook_events v ON v.seq = d.event_seq
	WHERE d.state = 'pending' AND (d.event_seq, d.endpoint_id) > (?, ?)
	ORDER BY d.event_seq, d.endpoint_id LIMIT ?`

// keep does what can wait: the queue's dead letters, the old events, the figures.
func (r *Relay) keep(ctx context.Context) error {
	err := r.bury(ctx)
	err = errors.Join(err, r.store.purge(ctx, r.store.now().Add(-EventRetention)), r.store.forgetSecrets(ctx))
	state, serr := r.store.outboxState(ctx)
	if serr == nil {
		r.onLook(state)
	}
	return errors.Join(err, serr)
}

// bury makes dead letters of the deliveries that the queue has given up because
// their workers died time after time. The list of dead letters is the database's,
// and the queue must not keep the name of a delivery that is asked for anew.
func (r *Relay) bury(ctx context.Context) error {
	letters, err := r.tasks.List(ctx, queue.StateDead, 0, relayBuried)
	if err != nil || len(letters) == 0 {
		return err
	}
	ids := make([]string, 0, len(letters))
	for i := range letters {
		l := &letters[i]
		eventID, endpointID, _ := strings.Cut(l.ID, ".")
		j, err := r.store.job(ctx, eventID, endpointID)
		if err == nil && j.state == DeliveryPending {
			reason := clip("given up by the queue: "+l.Reason, maxDeliveryError)
			err = r.store.record(ctx, []tried{{job: &j, state: DeliveryDead, attempts: j.attempts, reason: reason}})
		}
		if err != nil && !errors.Is(err, ErrDeliveryNotFound) {
			return err
		}
		ids = append(ids, l.ID)
	}
	_, err = r.tasks.Cancel(ctx, ids...)
	return err
}

// purge forgets the events from before a time that nobody is owed any more, and
// deleted endpoints, in pages. Dead letters of a later try are kept: some endpoints
// have their events put off for longer than that, and somebody must see the end.
func (s *Store) purge(ctx context.Context, before time.Time) error {
	for range purgePages {
		seqs, err := s.outdated(ctx, before)
		if err != nil {
			return err
		}
		if len(seqs) > 0 {
			if err := s.forget(ctx, seqs, before); err != nil {
				return err
			}
		}
		if len(seqs) < purgePage || ctx.Err() != nil {
			break
		}
	}
	return s.purgeEndpoints(ctx)
}

// outdated looks for a page of the events to forget. It passes over all that are
// old and still owed, which may be many: no orders must wait for that.
func (s *Store) outdated(ctx context.Context, before time.Time) (seqs []int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	by := before.UnixMilli()
	err = s.read.WithContext(ctx).Raw(selectPurge, by, by, by, purgePage).Scan(&seqs).Error
	if err != nil {
		return nil, wrap("look for old webhook events", err)
	}
	return seqs, nil
}

// forget deletes those of the events that were not asked for anew meanwhile.
func (s *Store) forget(ctx context.Context, seqs []int64, before time.Time) error {
	return s.changing(ctx, "forget webhook events", func(tx *gorm.DB, _ int64) error {
		var free []int64
		if err := tx.Raw(selectForget, before.UnixMilli(), seqs).Scan(&free).Error; err != nil || len(free) == 0 {
			return err
		}
		err := tx.Exec(`DELETE FROM webhook_deliveries WHERE endpoint_id IN (SELECT id FROM webhook_endpoints)
			AND event_seq IN ?`, free).Error
		if err != nil {
			return err
		}
		return tx.Exec("DELETE FROM webhook_events WHERE seq IN ?", free).Error
	})
}

const (
	// unwanted are the events with no delivery that is pending, or dead since that time. The
	// endpoints are named because the primary key begins with them.
	unwanted = `NOT EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.state = 'pending' AND d.event_seq = v.seq)
		AND NOT EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.endpoint_id IN (SELECT id FROM webhook_endpoints)
			AND d.event_seq = v.seq AND d.state = 'dead' AND d.last_at >= ?)`
	// selectPurge goes by number and not by time, for which there is no index: the
	// first events are the oldest.
	selectPurge = `SELECT seq FROM webhook_events v WHERE at < ?
		AND seq < COALESCE((SELECT MIN(seq) FROM webhook_events WHERE at >= ?), 9223372036854775807)
		AND ` + unwanted + ` ORDER BY seq LIMIT ?`
	selectForget = `SELECT seq FROM webhook_events v WHERE ` + unwanted + ` AND seq IN ?`
)

// forgetSecrets takes the secrets away that sign no more.
func (s *Store) forgetSecrets(ctx context.Context) error {
	const over = "old_secret <> '' AND old_secret_until <= ?"
	var n int64
	// Most times there is none, and the orders' writer is left alone.
	look, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := s.read.WithContext(look).Raw("SELECT COUNT(*) FROM webhook_endpoints WHERE "+over, s.now().UnixMilli()).Scan(&n).Error
	if err != nil {
		return wrap("look for old secrets", err)
	}
	if n == 0 {
		return nil
	}
	return s.changing(ctx, "forget old secrets", func(tx *gorm.DB, now int64) error {
		return tx.Exec("UPDATE webhook_endpoints SET old_secret = '', old_secret_until = 0 WHERE "+over, now).Error
	})
}

// purgeEndpoints takes the rest of deleted endpoints away.
func (s *Store) purgeEndpoints(ctx context.Context) error {
	var ids []string
	look, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := s.read.WithContext(look).Raw("SELECT id FROM webhook_endpoints WHERE deleted_at > 0").Scan(&ids).Error; err != nil {
		return wrap("look for deleted endpoints", err)
	}
	for _, id := range ids {
		for range purgePages {
			var gone int64
			err := s.changing(ctx, "forget webhook endpoint "+id, func(tx *gorm.DB, _ int64) error {
				res := tx.Exec(`DELETE FROM webhook_deliveries WHERE endpoint_id = ? AND event_seq IN
					(SELECT event_seq FROM webhook_deliveries WHERE endpoint_id = ? LIMIT ?)`, id, id, purgePage)
				if gone = res.RowsAffected; res.Error != nil || gone == purgePage {
					return res.Error
				}
				return tx.Exec("DELETE FROM webhook_endpoints WHERE id = ? AND deleted_at > 0", id).Error
			})
			if err != nil {
				return err
			}
			if gone < purgePage || ctx.Err() != nil {
				break
			}
		}
	}
	return nil
}

// outboxState looks how full the outbox is.
func (s *Store) outboxState(ctx context.Context) (OutboxState, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var row struct{ Events, Oldest int64 }
	err := s.read.WithContext(ctx).Raw(`SELECT
		COALESCE((SELECT MAX(seq) FROM webhook_events) - (SELECT MIN(seq) FROM webhook_events) + 1, 0) AS events,
		COALESCE((SELECT at FROM webhook_events WHERE seq =
			(SELECT MIN(event_seq) FROM webhook_deliveries WHERE state = 'pending')), 0) AS oldest`).Scan(&row).Error
	if err != nil {
		return OutboxState{}, wrap("look at the outbox", err)
	}
	state := OutboxState{Events: row.Events}
	if row.Oldest > 0 {
		state.OldestPending = max(0, s.now().Sub(fromMillis(row.Oldest)))
	}
	return state, nil
}
