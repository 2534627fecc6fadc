package order

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/pause"
	"flashsale/internal/subscription"
)

// Why an order cannot be followed.
var (
	// ErrTooManyStreams says that this process follows as many orders as it may.
	ErrTooManyStreams = errors.New("order: too many streams")
	// ErrTooManyOwnStreams says that one buyer follows as many orders as one may.
	ErrTooManyOwnStreams = errors.New("order: too many streams of one buyer")
	// ErrFeedClosed says that the process is about to end; another one follows
	// orders as well.
	ErrFeedClosed = errors.New("order: feed closed")
)

// resubscribePause is the pause before a subscription that has ended is tried again.
const resubscribePause = 100 * time.Millisecond

// FeedConfig configures a Feed. Store, Redis and Orders are required.
type FeedConfig struct {
	Store  *Store
	Redis  redis.UniversalClient
	Orders Finder
	// MaxStreams bounds the streams of the process. Default 10,000.
	MaxStreams int
	// MaxOwnStreams bounds those of one buyer on it. Default 10.
	MaxOwnStreams int
	// Look is how often the database is asked for all followed orders at once,
	// which is what a lost message costs at the most. Default 1 s.
	Look time.Duration
	// OnError learns of what is tried again. Default: nothing.
	OnError func(error)
}

// Finder reads an order wherever it is, or returns ErrNotFound.
type Finder interface {
	Get(ctx context.Context, id string) (Order, error)
}

// Feed follows orders for the streams of one process. It is told of changes by
// the processes that make them, while it has streams; what it was not told of it
// finds at its next look, so that telling need not be reliable. A look is a few
// queries for all streams together, and finds only those that changed.
type Feed struct {
	cfg FeedConfig
	// wanted holds a token when the first stream has come.
	wanted chan struct{}
	// notified holds a token when orders were reported as changed.
	notified chan struct{}
	// absentAfter is how long an order may have no row before it is looked for in
	// the queue, and how long after that once more.
	absentAfter time.Duration

	mu       sync.Mutex
	followed map[string]*tracked
	told     map[string]struct{} // of those that are followed
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
	// known is the last state that was seen in the database; before that, queued.
	known Status
	// missing is since when there is no row, and absent how often it was
	// nowhere else either.
	missing time.Time
	absent  int
}

// stream is one reader. It keeps the newest state only, so that a reader that is
// slow costs nothing: the events between are derived from it.
type stream struct {
	wake func()
	news *Order // nil: nothing new; shared with other streams, and never changed
	err  error  // why it has ended
}

// NewFeed returns a Feed, which works while Run does.
func NewFeed(cfg FeedConfig) *Feed {
	if cfg.MaxStreams == 0 {
		cfg.MaxStreams = 10_000
	}
	if cfg.MaxOwnStreams == 0 {
		cfg.MaxOwnStreams = 10
	}
	if cfg.Look == 0 {
		cfg.Look = time.Second
	}
	if cfg.OnError == nil {
		cfg.OnError = func(error) {}
	}
	return &Feed{
		cfg: cfg, wanted: make(chan struct{}, 1), notified: make(chan struct{}, 1), absentAfter: absentAfter,
		followed: make(map[string]*tracked), told: make(map[string]struct{}), owned: make(map[string]int),
		empty: make(chan struct{}),
	}
}

// Follow begins to follow an order, which need not exist. buyer is whose stream
// it is; empty: one of the shop's own, which are not counted by owner.
//
// wake is called when there is something to look at; it must not block, nor call
// the feed. look returns the order as it stands if that is news, else nil; of
// several changes it may return only the last, and it may return what is known
// already. The order is shared and must not be changed. Follow first and read the
// order then, and nothing is missed. look's errors, after which nothing more comes:
// ErrFeedClosed, and ErrNotFound when the order was nowhere to be found for a
// while. stop ends the stream and has to be called.
//
// Errors: ErrTooManyStreams, ErrTooManyOwnStreams, ErrFeedClosed.
func (f *Feed) Follow(id, buyer string, wake func()) (look func() (*Order, error), stop func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return nil, nil, ErrFeedClosed
	case buyer != "" && f.owned[buyer] >= f.cfg.MaxOwnStreams:
		return nil, nil, ErrTooManyOwnStreams
	case f.streams >= f.cfg.MaxStreams:
		return nil, nil, ErrTooManyStreams
	}
	e := f.followed[id]
	if e == nil {
		e = &tracked{id: id, streams: make(map[*stream]struct{}, 1), known: StatusQueued}
		f.followed[id] = e
	}
	// A newcomer has seen nothing, so whatever is there is news.
	e.known = StatusQueued
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
	return func() (*Order, error) { return f.newsOf(s) }, stop, nil
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
		delete(f.told, e.id)
	}
}

func (f *Feed) newsOf(s *stream) (*Order, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := s.news; o != nil {
		s.news = nil
		return o, nil
	}
	return nil, s.err
}

// signal leaves a token, unless one lies there.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Streams is how many streams there are.
func (f *Feed) Streams() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.streams
}

// Close ends all streams and lets none begin any more, so that their clients go
// to another process before this one stops to answer. It does not end Run, and
// does not wait for the streams; Wait does.
func (f *Feed) Close(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, e := range f.followed {
		e.end(ErrFeedClosed)
	}
	return nil
}

// Wait waits, after Close, until the streams have left: until their clients have
// been sent the end. Errors: the end of ctx.
func (f *Feed) Wait(ctx context.Context) error {
	if f.Streams() == 0 {
		return nil
	}
	select {
	case <-f.empty:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("order: %d event streams have not ended: %w", f.Streams(), context.Cause(ctx))
	}
}

// end ends the streams of an order. The caller holds the feed's mutex.
func (e *tracked) end(err error) {
	for s := range e.streams {
		s.err = err
		s.wake()
	}
}

// deliver hands a state to the streams of its order.
func (f *Feed) deliver(o *Order) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.followed[o.ID]
	if e == nil {
		return
	}
	e.known, e.missing, e.absent = o.Status, time.Time{}, 0
	news := *o // which may be one of a page of orders
	for s := range e.streams {
		s.news = &news
		s.wake()
	}
}

// Run listens and looks, while there are streams, until ctx ends.
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

// work follows orders until no streams are left or ctx ends.
func (f *Feed) work(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	defer listening.Wait()
	defer cancel()
	listening.Go(func() { f.listen(ctx) })
	tick := time.NewTicker(f.cfg.Look)
	defer tick.Stop()
	for {
		select {
		case <-f.notified:
			f.look(ctx, f.takeNotified())
		case <-tick.C:
			// Not before a tick: streams come and go, and each subscription is work.
			if f.Streams() == 0 {
				return
			}
			f.look(ctx, f.all())
			f.seek(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// listen hears which orders changed until ctx ends.
func (f *Feed) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := subscription.Hear(ctx, f.cfg.Redis, f.hear, changedChannel)
		if ctx.Err() != nil {
			return
		}
		f.cfg.OnError(fmt.Errorf("listen for changed orders: %w", err))
		pause.For(ctx, resubscribePause)
	}
}
