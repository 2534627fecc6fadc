package figures

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/plural"
)

// The reasons for refusing a watcher.
var (
	// ErrTooManyWatchers means that this process has MaxWatchers watchers.
	ErrTooManyWatchers = errors.New("figures: too many watchers")
	// ErrTooManyItems means that the watchers of this process would select more than 100
	// distinct items.
	ErrTooManyItems = errors.New("figures: too many distinct items are watched")
	// ErrClosed means that the process is shutting down; clients reconnect to another one.
	ErrClosed = errors.New("figures: closed")
)

const (
	// MaxItems bounds the items of an event.
	MaxItems = 20
	// maxSelected bounds the distinct items that the watchers of one process select.
	maxSelected = 100
	// defaultEvery is the interval of events.
	defaultEvery = time.Second
	// defaultWatchers is the default of Config.MaxWatchers.
	defaultWatchers = 100
)

// Config configures Figures. Redis, Counters and Process are required.
type Config struct {
	Redis    redis.UniversalClient
	Counters *Counters
	Process  Process
	// Sources read what an event shows besides the counters. Zero in a process that shows no
	// figures.
	Sources Sources
	// Wanted means that a client watches another process. Default nil: there is none.
	Wanted Wanted
	// Settle is how long after the first watcher all processes have noticed it, and so the
	// time for which events are marked as incomplete. Default 0: there is no other process.
	Settle time.Duration
	// MaxWatchers bounds the watchers of this process. Default 100.
	MaxWatchers int
	// Every is the interval of events and reports. Default 1 s; all processes need the same.
	Every time.Duration
	// OnError receives the first of several consecutive errors. Default: not called.
	OnError func(error)
	// roundLimit is the constant; only tests set it.
	roundLimit time.Duration
}

// Process describes this process to operators.
type Process struct {
	Kind    string // api, worker or serve (both)
	Host    string // with the process id
	Version string
	// State returns the present state. Default nil: all zero.
	State func() State
}

// Sources read parts of an event. Queues, Workers and Left are called once per event; Item, Lock
// and Now once per event and listed item, of which there are at most MaxItems and maxSelected
// together. An error makes its part unknown (null) in the event.
type Sources struct {
	// Queues returns the queues of accepted orders, and those of expiries.
	Queues func(ctx context.Context) (orders, expiries *Queue, err error)
	// Workers returns the state of the workers, from memory; nil: unknown.
	Workers func() *Workers
	// Item returns an item, from memory if possible.
	Item func(ctx context.Context, id string) (catalog.Item, error)
	// Left returns the units of items that can be bought, in their order; -1: not loaded.
	Left func(ctx context.Context, ids []string) ([]int64, error)
	// Lock returns the state of an item's lock.
	Lock func(ctx context.Context, id string) (*Lock, error)
	// Now returns the time by which an item's sale opens and closes.
	Now func(item string) time.Time
}

// Wanted starts the publication of a process's counters.
type Wanted chan struct{}

// NewWanted returns a Wanted that is not set.
func NewWanted() Wanted { return make(Wanted, 1) }

// Set means that WatchedKey exists. It does not block.
func (w Wanted) Set() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// Figures publishes the counters of this process while a client watches the deployment, and shows
// the figures of all processes to the watchers of this one. One loop serves all of them: it works
// while there are watchers here or elsewhere, and does nothing otherwise. All methods are safe
// for concurrent use.
type Figures struct {
	cfg     Config
	id      string
	started time.Time
	wanted  Wanted

	mu       sync.Mutex
	views    map[string]*view // by selection
	watchers int
	closed   bool
	// empty is closed when the figures are closed and the last watcher has left.
	empty chan struct{}

	// The rest belongs to Run.
	failing bool
	unsent  *report // whose items no other process has seen; nil: none
}

// view is what the watchers with the same selection of items see.
type view struct {
	items    []string // empty: the busiest
	watchers map[*watcher]struct{}
	frame    []byte // the last event; nil: none yet
}

// watcher is one reader. It keeps only the newest event, so a slow reader misses events and
// needs no buffer.
type watcher struct {
	wake  func()
	frame []byte // nil: nothing new; shared with other watchers, and never changed
	err   error  // why it has ended
}

// New returns Figures, which work while Run runs.
func New(cfg Config) (*Figures, error) {
	switch {
	case cfg.Redis == nil:
		return nil, errors.New("figures: Config.Redis is missing")
	case cfg.Counters == nil:
		return nil, errors.New("figures: Config.Counters is missing")
	case cfg.Every < 0 || cfg.Settle < 0 || cfg.MaxWatchers < 0:
		return nil, errors.New("figures: Config.Every, Settle and MaxWatchers must not be negative")
	}
	if cfg.Every == 0 {
		cfg.Every = defaultEvery
	}
	if cfg.MaxWatchers == 0 {
		cfg.MaxWatchers = defaultWatchers
	}
	if cfg.roundLimit == 0 {
		cfg.roundLimit = roundLimit
	}
	if cfg.OnError == nil {
		cfg.OnError = func(error) {}
	}
	if cfg.Process.State == nil {
		cfg.Process.State = func() State { return State{} }
	}
	if cfg.Wanted == nil {
		cfg.Wanted = NewWanted()
	}
	return &Figures{
		cfg: cfg, id: rand.Text(), started: time.Now(), wanted: cfg.Wanted,
		views: make(map[string]*view), empty: make(chan struct{}),
	}, nil
}

// Watch starts a watcher of the given items, or of the busiest if there are none.
//
// wake is called when look has something to return; it must not block, nor call f. look returns
// the newest event that it has not returned yet, or nil: the bytes of a server-sent event, which
// must not be changed. It skips the events before. Its error, ErrClosed, is final. stop ends the
// watcher and must be called.
//
// Errors: ErrTooManyWatchers, ErrTooManyItems, ErrClosed.
func (f *Figures) Watch(items []string, wake func()) (look func() ([]byte, error), stop func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return nil, nil, ErrClosed
	case f.watchers >= f.cfg.MaxWatchers:
		return nil, nil, ErrTooManyWatchers
	case len(f.selectedLocked(items)) > maxSelected:
		return nil, nil, ErrTooManyItems
	}
	key := strings.Join(items, ",")
	v := f.views[key]
	if v == nil {
		v = &view{items: slices.Clone(items), watchers: make(map[*watcher]struct{}, 1)}
		f.views[key] = v
	}
	w := &watcher{wake: wake, frame: v.frame}
	v.watchers[w] = struct{}{}
	if f.watchers++; f.watchers == 1 {
		f.wanted.Set()
	}
	var once sync.Once
	stop = func() { once.Do(func() { f.leave(key, w) }) }
	return func() ([]byte, error) { return f.newsOf(w) }, stop, nil
}

func (f *Figures) leave(key string, w *watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.views[key]
	delete(v.watchers, w)
	if len(v.watchers) == 0 {
		delete(f.views, key)
	}
	if f.watchers--; f.closed && f.watchers == 0 {
		close(f.empty)
	}
}

func (f *Figures) newsOf(w *watcher) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := w.frame; b != nil {
		w.frame = nil
		return b, nil
	}
	return nil, w.err
}

// selectedLocked returns the distinct items of all selections and of one more. The caller holds
// the mutex.
func (f *Figures) selectedLocked(more []string) []string {
	all := slices.Clone(more)
	for _, v := range f.views {
		all = append(all, v.items...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Watchers returns the number of watchers.
func (f *Figures) Watchers() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.watchers
}

// Close ends all watchers and refuses new ones, so that their clients reconnect to another
// process before this one stops serving. It does not end Run, and does not wait for the
// watchers; Wait does.
func (f *Figures) Close(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, v := range f.views {
		for w := range v.watchers {
			w.err = ErrClosed
			w.wake()
		}
	}
	return nil
}

// Wait waits, after Close, until every watcher has stopped, so that its client has received the
// end. Errors: the end of ctx.
func (f *Figures) Wait(ctx context.Context) error {
	if f.Watchers() == 0 {
		return nil
	}
	select {
	case <-f.empty:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("figures: still open: %s: %w", plural.Count(f.Watchers(), "stream"), context.Cause(ctx))
	}
}

// Run publishes and shows, while a client watches, until ctx ends.
func (f *Figures) Run(ctx context.Context) error {
	for {
		select {
		case <-f.wanted:
			f.work(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}
