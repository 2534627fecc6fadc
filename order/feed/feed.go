// Package feed follows orders for event streams.
package feed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/plural"
	"flashsale/internal/subscription"
	"flashsale/order"
	"flashsale/order/store"
)

// The reasons for refusing a stream.
var (
	// ErrTooManyStreams means that this process has MaxStreams streams.
	ErrTooManyStreams = errors.New("order: too many streams")
	// ErrTooManyOwnStreams means that one buyer has MaxOwnStreams streams.
	ErrTooManyOwnStreams = errors.New("order: too many streams of one buyer")
	// ErrClosed means that the process is shutting down; clients reconnect to another
	// one.
	ErrClosed = errors.New("order: feed closed")
)

// Config configures a Feed. Store, Redis and Orders are required.
type Config struct {
	Store  *store.Store
	Redis  redis.UniversalClient
	Orders Finder
	// MaxStreams bounds the streams of the process. Default 10,000.
	MaxStreams int
	// MaxOwnStreams bounds those of one buyer on it. Default 10.
	MaxOwnStreams int
	// Poll is the interval of the queries for all followed orders, and so the longest delay
	// after a lost message. Default 1 s.
	Poll time.Duration
	// OnError receives errors that are retried. Default: they are dropped.
	OnError func(error)
}

// Finder reads an order from the database or the queue, or returns ErrNotFound.
type Finder interface {
	Get(ctx context.Context, id string) (order.Order, error)
}

// Feed follows orders for the streams of one process. While it has streams, it subscribes
// to the messages of the processes that change orders. It also polls the database, so a
// message may be lost. A poll takes a few queries for all streams together, and returns
// only orders that changed.
type Feed struct {
	cfg Config
	// wanted holds a token after the first stream has started.
	wanted chan struct{}
	// notified holds a token when orders were reported as changed.
	notified chan struct{}
	// absentAfter is how long an order may have no row before it is searched for in the
	// queue, and the time until the second search.
	absentAfter time.Duration

	mu       sync.Mutex
	followed map[string]*tracked
	changed  map[string]struct{} // followed orders that were reported as changed
	owned    map[string]int      // streams by buyer
	streams  int
	closed   bool
	// empty is closed when the feed is closed and its last stream has left.
	empty chan struct{}
}

// tracked is an order that streams of this process follow.
type tracked struct {
	id      string
	streams map[*stream]struct{}
	// known is the last status read from the database; queued before that.
	known order.Status
	// missing is when the order was first found without a row, or last searched for; absent
	// counts the searches that did not find it.
	missing time.Time
	absent  int
}

// stream is one reader. It keeps only the newest state, so a slow reader needs no buffer:
// the events in between are derived from it.
type stream struct {
	wake   func()
	latest *order.Order // nil: nothing new; shared with other streams, and never changed
	err    error        // why it has ended
}

// NewFeed returns a Feed, which delivers changes while Run runs.
func NewFeed(cfg Config) *Feed {
	if cfg.MaxStreams == 0 {
		cfg.MaxStreams = 10_000
	}
	if cfg.MaxOwnStreams == 0 {
		cfg.MaxOwnStreams = 10
	}
	if cfg.Poll == 0 {
		cfg.Poll = time.Second
	}
	if cfg.OnError == nil {
		cfg.OnError = func(error) {}
	}
	return &Feed{
		cfg: cfg, wanted: make(chan struct{}, 1), notified: make(chan struct{}, 1), absentAfter: absentAfter,
		followed: make(map[string]*tracked), changed: make(map[string]struct{}), owned: make(map[string]int),
		empty: make(chan struct{}),
	}
}

// Follow starts a stream of an order, which need not exist. buyer is the owner of the
// stream; if it is empty, the stream belongs to the shop and does not count towards a
// buyer's limit.
//
// wake is called when look has something to return; it must not block, nor call the feed.
// look returns the order if it changed, else nil. It may skip all but the last of several
// changes, and may return a state that the caller has seen already. The order is shared and
// must not be changed. Call Follow before reading the order, so that no change is missed.
// An error from look is final: ErrClosed, or ErrNotFound if the order was not found for
// a while. stop ends the stream and must be called.
//
// Errors: ErrTooManyStreams, ErrTooManyOwnStreams, ErrClosed.
func (f *Feed) Follow(id, buyer string, wake func()) (look func() (*order.Order, error), stop func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return nil, nil, ErrClosed
	case buyer != "" && f.owned[buyer] >= f.cfg.MaxOwnStreams:
		return nil, nil, ErrTooManyOwnStreams
	case f.streams >= f.cfg.MaxStreams:
		return nil, nil, ErrTooManyStreams
	}
	e := f.followed[id]
	if e == nil {
		e = &tracked{id: id, streams: make(map[*stream]struct{}, 1), known: order.StatusQueued}
		f.followed[id] = e
	}
	// A new stream has seen nothing, so the order's present state is a change for it.
	e.known = order.StatusQueued
	s := &stream{wake: wake}
	e.streams[s] = struct{}{}
	f.streams++
	if buyer != "" {
		f.owned[buyer]++
	}
	if f.streams == 1 {
		signal(f.wanted)
	}
	var once sync.Once
	stop = func() { once.Do(func() { f.leave(e, s, buyer) }) }
	return func() (*order.Order, error) { return f.latestOf(s) }, stop, nil
}

func (f *Feed) leave(e *tracked, s *stream, buyer string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams--
	if f.closed && f.streams == 0 {
		close(f.empty)
	}
	if buyer != "" {
		if f.owned[buyer]--; f.owned[buyer] == 0 {
			delete(f.owned, buyer)
		}
	}
	delete(e.streams, s)
	if len(e.streams) == 0 {
		delete(f.followed, e.id)
		delete(f.changed, e.id)
	}
}

func (f *Feed) latestOf(s *stream) (*order.Order, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := s.latest; o != nil {
		s.latest = nil
		return o, nil
	}
	return nil, s.err
}

// signal leaves a token, unless the channel holds one.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Streams returns the number of streams.
func (f *Feed) Streams() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.streams
}

// Close ends all streams and refuses new ones, so that their clients reconnect to another
// process before this one stops serving. It does not end Run, and does not wait for the
// streams; Wait does.
func (f *Feed) Close(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, e := range f.followed {
		e.end(ErrClosed)
	}
	return nil
}

// Wait waits, after Close, until every stream has stopped, so that its client has received
// the end. Errors: the end of ctx.
func (f *Feed) Wait(ctx context.Context) error {
	if f.Streams() == 0 {
		return nil
	}
	select {
	case <-f.empty:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("order: still open: %s: %w", plural.Count(f.Streams(), "event stream"), context.Cause(ctx))
	}
}

// end ends the streams of an order. The caller holds the feed's mutex.
func (e *tracked) end(err error) {
	for s := range e.streams {
		s.err = err
		s.wake()
	}
}

// deliver passes an order's new state to its streams.
func (f *Feed) deliver(o *order.Order) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.followed[o.ID]
	if e == nil {
		return
	}
	e.known, e.missing, e.absent = o.Status, time.Time{}, 0
	news := *o // o may be part of a page of orders
	for s := range e.streams {
		s.latest = &news
		s.wake()
	}
}

// Run subscribes and polls, while there are streams, until ctx ends.
func (f *Feed) Run(ctx context.Context) error {
	for {
		select {
		case <-f.wanted:
			f.work(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

// work follows orders until no stream is left or ctx ends.
func (f *Feed) work(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	defer listening.Wait()
	defer cancel()
	listening.Go(func() { f.listen(ctx) })
	tick := time.NewTicker(f.cfg.Poll)
	defer tick.Stop()
	for {
		select {
		case <-f.notified:
			f.poll(ctx, f.takeNotified())
		case <-tick.C:
			// Checked only at a tick: streams come and go, and a subscription is expensive.
			if f.Streams() == 0 {
				return
			}
			f.poll(ctx, f.all())
			f.search(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// listen receives the ids of changed orders until ctx ends.
func (f *Feed) listen(ctx context.Context) {
	l := subscription.Listener{
		Redis: f.cfg.Redis, Channels: []string{order.ChangedChannel}, Name: "changed orders",
		OnSubscribed: func() error {
			f.changedAll()
			return nil
		},
		OnMessage: f.receive,
		OnError:   f.cfg.OnError,
	}
	l.Run(ctx)
}
