package service

import (
	"context"
	"errors"

	"flashsale/handler"
)

// health answers whether this process works.
type health struct {
	*shared
	drain *drain
	pulse *pulse // nil without a worker
}

func (h *health) checks() []handler.Check {
	return []handler.Check{
		{Name: "draining", Probe: func(context.Context) error { return h.drain.check() }},
		{Name: "redis", Probe: func(ctx context.Context) error { return h.eng.rdb.Ping(ctx).Err() }},
		{Name: "database", Probe: h.databaseReady},
		{Name: "database", Probe: h.salesStopped, Degrades: "older than Redis as to some items, whose sales are stopped until flashsale recover"},
	}
}

// databaseReady checks whether the database takes writes, and whether anything can be
// sold: not if it is older than Redis as to every item.
func (h *health) databaseReady(ctx context.Context) error {
	err := h.canWrite(ctx)
	if h.highWater.All() {
		err = errors.Join(err, h.highWater.Err())
	}
	return err
}

// salesStopped fails while the database is older than Redis as to some items. The other
// sales go on, so the process stays ready.
func (h *health) salesStopped(context.Context) error {
	if h.highWater.All() {
		return nil // databaseReady says so
	}
	return h.highWater.Err()
}

// canWrite checks whether the database takes writes. A worker that commits has shown
// it, and is not held up by a write of the check's own.
func (h *health) canWrite(ctx context.Context) error {
	if h.pulse != nil {
		if at := h.pulse.committed.Load(); at != nil && h.now().Sub(*at) < commitTrust {
			return nil
		}
	}
	return h.writes.Check(ctx)
}
