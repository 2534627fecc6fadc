package webhooks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"flashsale/order"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

const (
	// eventRetention is how long an event is kept after its deliveries have ended.
	eventRetention = 7 * 24 * time.Hour
	// purgePage is how many events are deleted in one transaction, and purgePages how many
	// transactions in a row: orders wait for the same writer.
	purgePage  = 500
	purgePages = 20
	// longestPause is longer than any pause between two attempts of a delivery.
	longestPause = 30 * time.Hour
)

// OutboxState is the size and age of the outbox.
type OutboxState struct {
	// Events is the number of events, computed from their first and last number. On Postgres
	// it includes numbers of transactions that failed.
	Events int64
	// OldestPending is the age of the first event with a pending delivery. On Postgres another
	// one can be older, by the duration of a transaction at most.
	OldestPending time.Duration
}

// tidy does deferrable work: it deletes old events and secrets, and corrects due times that
// a wrong clock wrote. A later call repeats work that failed.
func tidy(ctx context.Context, s *store.Store) error {
	return errors.Join(purge(ctx, s, s.Now().Add(-eventRetention)), forgetSecrets(ctx, s), correctDueTimes(ctx, s))
}

// purge deletes, in pages, events from before a time whose deliveries have all ended, and
// deleted endpoints. An event whose last attempt was later is kept as a dead letter:
// retries of some endpoints take longer, and operators must be able to see how they ended.
func purge(ctx context.Context, s *store.Store, before time.Time) error {
	for range purgePages {
		seqs, err := outdated(ctx, s, before)
		if err != nil {
			return err
		}
		if len(seqs) > 0 {
			if err := forget(ctx, s, seqs, before); err != nil {
				return err
			}
		}
		if len(seqs) < purgePage || ctx.Err() != nil {
			break
		}
	}
	return purgeEndpoints(ctx, s)
}

// outdated finds a page of events to delete. It skips all old ones with pending deliveries,
// which may be many, so it runs on a reading connection and delays no orders.
func outdated(ctx context.Context, s *store.Store, before time.Time) (seqs []int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	by := before.UnixMilli()
	err = s.Reader().WithContext(ctx).Raw(selectPurge, by, by, by, purgePage).Scan(&seqs).Error
	if err != nil {
		return nil, database.Wrap("find old webhook events", err)
	}
	return seqs, nil
}

// forget deletes the events for which no redelivery was requested meanwhile.
func forget(ctx context.Context, s *store.Store, seqs []int64, before time.Time) error {
	return s.ChangeWithGORM(ctx, "forget webhook events", func(tx *gorm.DB, _ int64) error {
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
	// unwanted selects events with no delivery that is pending, or dead since that time.
	// The query lists the endpoints because the primary key starts with them. It counts,
	// because Postgres would join NOT EXISTS, and read all dead deliveries for a page of events.
	unwanted = `(SELECT COUNT(*) FROM webhook_deliveries d WHERE d.state = 'pending' AND d.event_seq = v.seq) = 0
		AND (SELECT COUNT(*) FROM webhook_deliveries d WHERE d.endpoint_id IN (SELECT id FROM webhook_endpoints)
			AND d.event_seq = v.seq AND d.state = 'dead' AND d.last_at >= ?) = 0`
	// selectPurge orders by number and not by time, for which there is no index: the first
	// events are the oldest. The first recent event only bounds how many are read. On Postgres
	// an event may be committed after one with a higher number, and clocks of processes differ,
	// so every event is selected by its own time. An event and its deliveries are committed
	// together, and forget checks them again while nothing else writes.
	selectPurge = `SELECT seq FROM webhook_events v WHERE at < ?
		AND seq < COALESCE((SELECT MIN(seq) FROM webhook_events WHERE at >= ?), 9223372036854775807)
		AND ` + unwanted + ` ORDER BY seq LIMIT ?`
	selectForget = `SELECT seq FROM webhook_events v WHERE ` + unwanted + ` AND seq IN ?`
)

// forgetSecrets deletes the secrets that no longer sign.
func forgetSecrets(ctx context.Context, s *store.Store) error {
	return updateIfAny(ctx, s, "forget old secrets", update{
		table: "webhook_endpoints", set: "old_secret = '', old_secret_until = 0",
		where: "old_secret <> '' AND old_secret_until <= ?", args: []any{s.Now().UnixMilli()},
	})
}

// correctDueTimes corrects due times later than any attempt can be, to now: a wrong clock wrote
// them, and the delivery would wait for years.
func correctDueTimes(ctx context.Context, s *store.Store) error {
	now := s.Now()
	return updateIfAny(ctx, s, "correct due times", update{
		table: "webhook_deliveries", set: fmt.Sprintf("next_at = %d", now.UnixMilli()),
		where: whereFarOff, args: []any{now.Add(longestPause).UnixMilli(), purgePage},
	})
}

const whereFarOff = `(endpoint_id, event_seq) IN (SELECT endpoint_id, event_seq FROM webhook_deliveries
	WHERE endpoint_id IN (SELECT id FROM webhook_endpoints) AND state = 'pending' AND next_at > ? LIMIT ?)`

// update is an UPDATE of a table; args are those of the condition.
type update struct {
	table, set, where string
	args              []any
}

// updateIfAny updates the rows that match a condition. Usually there are none, and it does not
// use the writer.
func updateIfAny(ctx context.Context, s *store.Store, operation string, u update) error {
	look, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var found bool
	err := s.Reader().WithContext(look).Raw("SELECT EXISTS (SELECT 1 FROM "+u.table+" WHERE "+u.where+")", u.args...).Scan(&found).Error
	if err != nil {
		return database.Wrap(operation, err)
	}
	if !found {
		return nil
	}
	return s.ChangeWithGORM(ctx, operation, func(tx *gorm.DB, _ int64) error {
		return tx.Exec("UPDATE "+u.table+" SET "+u.set+" WHERE "+u.where, u.args...).Error
	})
}

// purgeEndpoints deletes the remaining rows of deleted endpoints.
func purgeEndpoints(ctx context.Context, s *store.Store) error {
	var ids []string
	look, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	if err := s.Reader().WithContext(look).Raw("SELECT id FROM webhook_endpoints WHERE deleted_at > 0").Scan(&ids).Error; err != nil {
		return database.Wrap("find deleted endpoints", err)
	}
	for _, id := range ids {
		for range purgePages {
			var gone int64
			err := s.ChangeWithGORM(ctx, "forget webhook endpoint "+id, func(tx *gorm.DB, _ int64) error {
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

// outboxState reads the size and age of the outbox.
func outboxState(ctx context.Context, s *store.Store) (OutboxState, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var row struct{ Events, Oldest int64 }
	err := s.Reader().WithContext(ctx).Raw(`SELECT
		COALESCE((SELECT MAX(seq) FROM webhook_events) - (SELECT MIN(seq) FROM webhook_events) + 1, 0) AS events,
		COALESCE((SELECT at FROM webhook_events WHERE seq =
			(SELECT MIN(event_seq) FROM webhook_deliveries WHERE state = 'pending')), 0) AS oldest`).Scan(&row).Error
	if err != nil {
		return OutboxState{}, database.Wrap("read the outbox", err)
	}
	state := OutboxState{Events: row.Events}
	if row.Oldest > 0 {
		state.OldestPending = max(0, s.Now().Sub(order.FromMillis(row.Oldest)))
	}
	return state, nil
}
