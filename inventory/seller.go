package inventory

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/breaker"
	"flashsale/internal/faultpoint"
	"flashsale/internal/pause"
	"flashsale/internal/tracing"
	"flashsale/inventory/accepted"
	"flashsale/lock"
)

// idleLife is how long a seller without requests stays, so that an item with rare
// purchases does not start a seller for each of them.
const idleLife = 30 * time.Second

// seller sells one item for this process.
type seller struct {
	v    *Inventory
	item string

	mu      sync.Mutex
	pending []*Request
	retired bool
	wake    chan struct{}

	mark atomic.Pointer[soldOutMark]
	// drops counts how often the sold-out mark became invalid.
	drops atomic.Int64
	// floor is the highest sequence of the sale that a script has returned to this
	// process. A lower one in Redis means that Redis was restored from older data.
	floor atomic.Int64

	// The rest belongs to the run goroutine.
	partition int
	keys      []string // of the purchase script
	lock      sellerLock
	args      scriptArgs
	spare     []*Request // the memory of the next batch
	epoch     int64      // under which the last script was sent
	sent      time.Time  // when it was sent
	replied   time.Time  // when its reply came, or was given up
	down      bool       // Redis did not answer for the previous batch
	loading   *loading   // nil unless the sale is being loaded
	stopped   time.Time  // when a load was last refused with ErrStopped
	// accepted has the sale's accepted keys as far as this process has received them; nil
	// until nothing is left. The last script was asked for the keys of askedBuild from
	// number askedFrom on.
	accepted   *keySet
	askedBuild string
	askedFrom  int64
	parcel     string          // id of the task for the batch's orders
	trace      *tracing.Shared // of the batch; nil unless one of its purchases is sampled
}

func newSeller(v *Inventory, item string) *seller {
	s := &seller{v: v, item: item, wake: make(chan struct{}, 1), partition: v.keys.partition(item)}
	s.lock = sellerLock{v: v, item: item, name: v.keys.lock(item), clock: &v.clocks[s.partition], beforeRelease: s.endLoading}
	lockKey, waitersKey, fenceKey := v.locks.InstantKeys(s.lock.name)
	q := v.queues[s.partition]
	s.keys = append([]string{lockKey, waitersKey, v.keys.sale(item), v.keys.idempotency(item), v.keys.buyers(item),
		accepted.LogKey(q.Prefix()), v.keys.accepted(item), fenceKey}, q.EnqueueKeys()...)
	return s
}

// add appends a request. retry says that the seller has just retired.
func (s *seller) add(r *Request) (retry bool, err error) {
	s.mu.Lock()
	if s.retired {
		s.mu.Unlock()
		return true, nil
	}
	n := len(s.pending)
	if n >= s.v.cfg.MaxPending {
		s.mu.Unlock()
		return false, ErrOverloaded
	}
	s.pending = append(s.pending, r)
	s.mu.Unlock()
	if n == 0 {
		s.signal()
	}
	return false, nil
}

// addFirst puts requests of a batch in front of the pending ones. They are sent in a batch of
// their own, with other order ids.
func (s *seller) addFirst(requests []*Request) {
	if len(requests) == 0 {
		return
	}
	s.mu.Lock()
	s.pending = slices.Insert(s.pending, 0, requests...)
	s.mu.Unlock()
	s.signal()
}

func (s *seller) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// retire makes the seller end once nothing is pending. The caller holds v.mu.
func (s *seller) retire() {
	s.mu.Lock()
	s.retired = true
	s.mu.Unlock()
	s.signal()
}

// take moves up to a batch of pending requests into s.spare. All requests of a batch have
// the same version of the item.
func (s *seller) take() []*Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.pending), s.v.cfg.MaxBatch)
	for i := 1; i < n; i++ {
		if s.pending[i].ItemVersion != s.pending[0].ItemVersion {
			n = i
		}
	}
	batch := append(s.spare[:0], s.pending[:n]...)
	rest := copy(s.pending, s.pending[n:])
	clear(s.pending[rest:])
	s.pending = s.pending[:rest]
	s.spare = batch
	return batch
}

// run sells the requests that arrived while the last script was in flight, batch by batch.
func (s *seller) run() {
	defer s.v.running.Done()
	defer s.lock.release()
	idle := time.NewTimer(idleLife)
	defer idle.Stop()
	for {
		s.gather()
		if batch := s.take(); len(batch) > 0 {
			s.sell(batch)
			clear(batch)
			continue
		}
		// Nothing to sell: keep the lock for a moment, since the next request is
		// probably close, and then release it. With a sold-out mark, further requests do
		// not need the lock.
		if s.loading == nil && s.mark.Load() != nil {
			s.lock.release()
		}
		wait := idleLife
		if s.lock.held != nil {
			wait = s.v.cfg.LockIdle
		}
		idle.Reset(wait)
		select {
		case <-s.wake:
			// The request of this signal may have been sold with an earlier batch.
			wait = 0
		case <-idle.C:
			if s.lock.held != nil {
				// A load needs the lock. Check for its end again later.
				if s.loading == nil || s.loading.ended() {
					s.lock.release()
				}
				continue
			}
		}
		if s.done(wait == idleLife) {
			return
		}
	}
}

// gatherYields bounds how often gather yields the processor.
const gatherYields = 4

// gather yields to the handlers that are ready to run, as long as they submit new
// requests. It does not wait: on an idle process it returns at once. Fuller batches save
// round trips; with 100 instead of 50 purchases a batch, Redis needs a fifth less time per
// purchase.
func (s *seller) gather() {
	for n, i := 0, 0; i < gatherYields; i++ {
		s.mu.Lock()
		m := len(s.pending)
		s.mu.Unlock()
		if m <= n || m >= s.v.cfg.MaxBatch {
			return
		}
		n = m
		runtime.Gosched()
	}
}

// done reports whether the seller may end: nothing is pending, and it is retired or was
// idle for idleLife.
func (s *seller) done(idle bool) bool {
	s.v.mu.Lock()
	defer s.v.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) > 0 || (!idle && !s.retired) {
		return false
	}
	select {
	case <-s.wake: // a request arrived while the time ran out; stay
		return s.retired
	default:
	}
	s.retired = true
	delete(s.v.sellers, s.item)
	s.v.floors.keep(s.item, s.floor.Load(), time.Now())
	return true
}

// Pauses between attempts to send a batch whose outcome is unknown.
const (
	resendMin = 5 * time.Millisecond
	resendMax = 200 * time.Millisecond
)

// sell sends one batch until its outcome is known or its patience is spent.
// Sending it again is safe: the script recognises the orders that it has accepted before.
func (s *seller) sell(batch []*Request) {
	taken := time.Now()
	batch, sampled := s.dropAnswerable(batch, taken)
	if len(batch) == 0 {
		return
	}
	if time.Since(s.stopped) < stoppedLife {
		answer(batch, ErrStopped)
		return
	}
	var err error
	if s.parcel, err = accepted.NewTaskID(); err != nil {
		s.v.cfg.OnError(err)
		answer(batch, ErrUnavailable)
		return
	}
	name(batch, s.parcel)
	if sampled {
		s.beginTrace(batch, taken)
		defer s.endTrace()
	}
	ctx, cancel := context.WithTimeout(s.v.life, s.v.cfg.Patience)
	defer cancel()
	s.lock.sinceRefusal() // of a batch that failed
	unknown := false      // whether an earlier attempt may have taken effect
	for wait := resendMin; ; wait = min(2*wait, resendMax) {
		err := s.try(ctx, batch)
		if err == nil {
			s.down = false
			return
		}
		unknown = unknown || errors.Is(err, errUnknown)
		if definite(err) && !unknown {
			answer(batch, err)
			return
		}
		if errors.Is(err, breaker.ErrOpen) && !unknown {
			break // the batch was not sent, and the next attempt would not send it either
		}
		if errors.Is(err, errAgain) && ctx.Err() == nil {
			continue
		}
		s.v.cfg.OnError(fmt.Errorf("sell %s: %w", s.item, about(batch, err)))
		// While Redis is known to be away, a batch fails after one attempt instead of
		// after its whole patience.
		if s.down || !pause.Jittered(ctx, wait) {
			break
		}
	}
	s.down = true
	answer(batch, ErrUnavailable)
}

// errUnknown says that the script was sent and its reply did not arrive.
var errUnknown = errors.New("inventory: outcome unknown")

// errAgain says that the batch can be sent again: the sale has just been loaded, or the script of
// an instant batch has refused.
var errAgain = errors.New("inventory: send again")

// definite reports whether an error of try answers the batch and is not retried.
func definite(err error) bool {
	return errors.Is(err, ErrOverloaded) || errors.Is(err, ErrRebuilding) || errors.Is(err, ErrStopped)
}

// dropAnswerable answers the requests that need no script: their patience ran out while they
// waited for earlier batches, or one of these left a sold-out mark that covers them. When a stock
// runs out, that is most of the crowd. sampled says that one of the others is sampled.
func (s *seller) dropAnswerable(batch []*Request, now time.Time) (rest []*Request, sampled bool) {
	rest = batch[:0]
	for _, r := range batch {
		waited := now.Sub(r.since)
		if waited > s.v.cfg.Patience {
			r.Done(Outcome{Err: ErrOverloaded})
			continue
		}
		if err := s.refusal(r.Buyer, r.IdempotencyKey, r.Quantity, now); err != nil {
			r.Done(Outcome{Err: err})
			continue
		}
		s.v.cfg.OnWait(waited)
		rest = append(rest, r)
		sampled = sampled || r.Trace != nil
	}
	return rest, sampled
}

// stoppedLife is how long purchases of a stopped sale are refused from memory. Each check
// of the sale costs a read of the database.
const stoppedLife = 250 * time.Millisecond

// try sends the batch once. It returns nil when every request was answered.
func (s *seller) try(ctx context.Context, batch []*Request) error {
	waited, err := s.lock.prepare(ctx, s.replied)
	if err != nil {
		if errors.Is(err, lock.ErrWaitTimeout) {
			if s.v.beingLoaded(s.item) {
				return fmt.Errorf("%w: by another process: %w", ErrRebuilding, err)
			}
			return fmt.Errorf("%w: could not acquire the item's lock: %w", ErrOverloaded, err)
		}
		return err
	}
	instant := s.lock.value == ""
	if !instant {
		s.waited(batch, waited, s.lock.since)
	}
	drops := s.drops.Load()
	reply, err := s.send(ctx, batch)
	if err != nil {
		return err
	}
	if instant && reply.status != "ok" {
		return s.lock.instantRefused(ctx, reply.status)
	}
	if instant {
		s.waited(batch, s.lock.instantDone(), s.sent)
	}
	switch reply.status {
	case "ok":
	case "lost", "fenced":
		s.lock.release()
		return fmt.Errorf("purchase refused (%s): %w", reply.status, lock.ErrLost)
	case "epoch":
		if s.v.refresh(ctx) {
			return errAgain
		}
		return s.loadOrAnswer(ctx, batch, 0, reply.waiting)
	case "missing":
		return s.loadOrAnswer(ctx, batch, 0, reply.waiting)
	case "rewound":
		return s.loadOrAnswer(ctx, batch, s.epoch, reply.waiting)
	default:
		return fmt.Errorf("purchase script answered status %q", reply.status)
	}
	// Before the answers, so that a client that sends its next request immediately is not
	// answered by an older mark.
	s.noteSoldOut(&reply, drops)
	if err := s.deliver(batch, &reply); err != nil {
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	floor := s.floor.Load()
	if reply.waiting > 0 || floor > 0 && reply.sequence > floor+1 {
		s.lock.shared = time.Now() // another process waits for the lock, or has taken or returned units
	}
	s.floor.Store(max(floor, reply.sequence))
	s.v.clocks[s.partition].set(reply.nowMS)
	s.v.observers.OnVersion(s.item, itemVersionOf(reply.version), s.sent)
	if s.lock.isShared() {
		s.lock.release()
	}
	return nil
}

// waited reports how long a batch has waited for the item's lock.
func (s *seller) waited(batch []*Request, d time.Duration, until time.Time) {
	s.v.cfg.OnLock(len(batch), d)
	if s.trace != nil && d > 0 {
		s.trace.Step("lock.wait", until.Add(-d), until, nil)
	}
}

func (s *seller) send(ctx context.Context, batch []*Request) (purchaseReply, error) {
	s.epoch = s.v.epoch.Load()
	s.askedBuild, s.askedFrom = "", 0
	if s.accepted != nil {
		s.askedBuild, s.askedFrom = s.accepted.build, s.accepted.known
	}
	args := s.args.of(s, batch)
	faultpoint.Reach("inventory.send")
	start := time.Now()
	s.sent = start
	res, err := s.evaluate(ctx, purchaseScript.EvalSha, args)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		// Scripts are neither in the append-only file nor on replicas. So a server that
		// has this script has not restarted since a process compared it with the database.
		if err := s.v.observers.OnRestart(ctx); err != nil {
			return purchaseReply{}, fmt.Errorf("%w: the server was restarted: %w", ErrRebuilding, err)
		}
		res, err = s.evaluate(ctx, purchaseScript.Eval, args)
	}
	s.replied = time.Now()
	faultpoint.Reach("inventory.sent")
	clear(args)
	reply, err := readReply(res, err)
	if s.lock.value != "" || err != nil || reply.status == "ok" { // not for a refused instant batch, which is sent again
		s.v.cfg.OnBatch(len(batch), s.replied.Sub(start))
		if s.trace != nil {
			s.trace.Step("redis.script", start, s.replied, err)
		}
	}
	return reply, err
}

// readReply reads the outcome of a purchase script. Errors: errUnknown if it may have run.
func readReply(res any, err error) (purchaseReply, error) {
	var refused redis.Error
	switch {
	case errors.As(err, &refused), // Redis's reply: the script did not run, or failed before its first write
		errors.Is(err, breaker.ErrOpen): // it was not sent
		return purchaseReply{}, fmt.Errorf("purchase script: %w", err)
	case err != nil:
		return purchaseReply{}, fmt.Errorf("purchase script: %w: %w", errUnknown, err)
	}
	reply, err := parsePurchaseReply(res)
	if err != nil {
		return reply, fmt.Errorf("%w: %w", errUnknown, err)
	}
	return reply, nil
}

func answer(batch []*Request, err error) {
	for _, r := range batch {
		r.Done(Outcome{Err: err})
	}
}
