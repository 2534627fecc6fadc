package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// quorum is a store on several independent nodes: a lock is held while a
// majority of them holds it. The method is Redlock
// (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/);
// the fencing tokens are an addition to it.
//
// Every node is asked at once, and what is decided is not waited for further:
// a node that hangs costs time only when it is needed. Its call goes on in the
// background until its timeout.
type quorum struct {
	m       *Manager
	nodes   []*node
	need    int // a majority
	timeout time.Duration

	mu    sync.Mutex
	lanes map[laneKey]*lane
}

// laneKey names the calls for one token on one node. They go out one after the
// other, because an acquire or a renewal that a node ran after the release would
// keep the lock there for its TTL.
type laneKey struct {
	token string
	node  int
}

// lane ends with the last call that was lined up.
type lane struct {
	last chan struct{} // closed when that call has returned
	refs int           // how many have not
}

// NewQuorum returns a manager whose locks are held by a majority of independent
// Redis nodes, at least three, so that the loss of a minority loses no lock. It
// offers what New's does, with these differences: waiters poll (see
// Config.Poll) and are served in no order, a release hands nothing over, and an
// acquire takes two round trips. The errors are ErrInvalid.
//
// It does not make the lock safe against everything: a node that forgets a lock
// before its TTL is over (a restart without durable storage) can let another
// majority form beside the holder's, and so can a node whose clock jumps. Keep
// a node that lost its data away for one TTL; and whatever is written under the
// lock, let the data check the fencing token, which also stops holders that
// stalled. The README says more.
func NewQuorum(nodes []redis.UniversalClient, cfg Config) (*Manager, error) {
	cfg, err := quorumConfig(cfg)
	if err != nil {
		return nil, err
	}
	if len(nodes) < 3 {
		return nil, fmt.Errorf("%w argument: %d nodes, a quorum needs at least 3", ErrInvalid, len(nodes))
	}
	m := makeManager(cfg)
	q := &quorum{m: m, need: len(nodes)/2 + 1, timeout: cfg.NodeTimeout, lanes: make(map[laneKey]*lane)}
	seen := make(map[string]bool)
	for i, rdb := range nodes {
		if err := checkClient(rdb); err != nil {
			return nil, fmt.Errorf("node %d: %w", i, err)
		}
		if c, ok := rdb.(*redis.Client); ok {
			if addr := c.Options().Addr; seen[addr] {
				return nil, fmt.Errorf("%w argument: node %d has the address %s of an earlier one", ErrInvalid, i, addr)
			}
			seen[c.Options().Addr] = true
		}
		q.nodes = append(q.nodes, newNode(rdb, cfg))
	}
	m.store = q
	return m, nil
}

func quorumConfig(cfg Config) (Config, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return cfg, err
	}
	setDefault(&cfg.Poll, max(time.Millisecond, min(25*time.Millisecond, cfg.TTL/4)))
	setDefault(&cfg.NodeTimeout, min(max(cfg.TTL/10, minTTL/4), cfg.CallTimeout))
	switch {
	case cfg.NodeTimeout <= 0 || cfg.NodeTimeout > cfg.CallTimeout:
		return cfg, fmt.Errorf("%w config: NodeTimeout is %s, it must be more than zero and at most CallTimeout %s", ErrInvalid, cfg.NodeTimeout, cfg.CallTimeout)
	case cfg.NodeTimeout > cfg.TTL/3:
		return cfg, fmt.Errorf("%w config: NodeTimeout %s exceeds a third of TTL %s", ErrInvalid, cfg.NodeTimeout, cfg.TTL)
	case cfg.Replicas != 0:
		return cfg, fmt.Errorf("%w config: Replicas is not for NewQuorum", ErrInvalid)
	}
	return cfg, nil
}

func (q *quorum) queues() bool { return false }

// vote is what one node said.
type vote[T any] struct {
	node   int
	answer T
	err    error
}

// poll asks the chosen nodes at once, each for at most so long, and returns
// their votes as they come in. The calls go on when the caller has heard enough.
// With a token they take their places in its lanes before poll returns.
func poll[T any](ctx context.Context, q *quorum, token string, chosen []int, limit time.Duration, ask func(ctx context.Context, i int, n *node) (T, error)) <-chan vote[T] {
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline))
	}
	votes := make(chan vote[T], len(chosen))
	for _, i := range chosen {
		turn := func(context.Context) error { return nil }
		done := func() {}
		if token != "" {
			turn, done = q.lineUp(token, i)
		}
		q.m.background(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
			defer cancel()
			defer done()
			var answer T
			err := turn(ctx)
			if err == nil {
				answer, err = ask(ctx, i, q.nodes[i])
			}
			if err != nil {
				err = fmt.Errorf("node %d: %w", i, err)
			}
			votes <- vote[T]{i, answer, err}
		})
	}
	return votes
}

// next waits for a vote; false when ctx ends first.
func next[T any](ctx context.Context, votes <-chan vote[T]) (vote[T], bool) {
	select {
	case v := <-votes:
		return v, true
	case <-ctx.Done():
		return vote[T]{}, false
	}
}

// lineUp takes a place in the lane of a token on a node. turn waits until the
// calls before have returned, and done lets the next one go.
func (q *quorum) lineUp(token string, i int) (turn func(context.Context) error, done func()) {
	key := laneKey{token, i}
	own := make(chan struct{})
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lanes[key]
	if l == nil {
		l = &lane{}
		q.lanes[key] = l
	}
	before := l.last
	l.last = own
	l.refs++
	turn = func(ctx context.Context) error {
		if before == nil {
			return nil
		}
		select {
		case <-before:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	done = func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		close(own)
		if l.refs--; l.refs == 0 {
			delete(q.lanes, key)
		}
	}
	return turn, done
}

// acquire takes the lock on a majority, and then stores the greatest of their
// fencing tokens on all of those before it counts: the majority of whoever is
// next shares a node with this one, and there mints a greater token.
func (q *quorum) acquire(ctx context.Context, a *attempt) (reply, error) {
	started := time.Now()
	// A name of its own for each try: what is left of the try before is being
	// given back, and must not be mistaken for this one's.
	a.token = q.m.newToken()
	h := &holding{keys: a.keys, settings: a.settings, token: a.token}
	granted, late, r, err := q.collect(ctx, h)
	if err == nil {
		h.fence = r.fence
		err = q.settle(ctx, h, granted)
	}
	if left := validity(a.settings.ttl) - time.Since(started); err == nil && left <= 0 {
		err = fmt.Errorf("%w: taking it lasted longer than its TTL", ErrNoQuorum)
	}
	switch {
	case err == nil:
		q.settleLate(ctx, h, late, len(q.nodes)-len(granted)-r.refused)
		r.held = true
		return r, nil
	case errors.Is(err, ErrTaken):
		q.abandon(ctx, h)
		return r, nil
	default:
		q.abandon(ctx, h)
		return r, err
	}
}

// collect asks every node for the lock until a majority has granted it or
// cannot any more. The error is ErrTaken when others hold it, ErrForeignKey, or
// ErrNoQuorum with those of the nodes. What was not waited for comes in late.
func (q *quorum) collect(ctx context.Context, h *holding) (granted []int, late <-chan vote[reply], r reply, err error) {
	late = poll(ctx, q, h.token, everyOne(len(q.nodes)), q.timeout, func(ctx context.Context, _ int, n *node) (reply, error) {
		return n.runAcquire(ctx, n.run, &attempt{keys: h.keys, settings: h.settings, token: h.token})
	})
	var failures []error
	taken := 0
	for len(granted) < q.need && len(q.nodes)-taken-len(failures) >= q.need {
		v, ok := next(ctx, late)
		if !ok {
			failures = append(failures, ctx.Err())
			break
		}
		r.repaired = r.repaired || v.answer.repaired
		switch {
		case v.err != nil:
			failures = append(failures, v.err)
		case v.answer.held:
			granted = append(granted, v.node)
			r.fence = max(r.fence, v.answer.fence)
		default:
			taken++
			r.lapse = max(r.lapse, v.answer.lapse)
		}
	}
	r.refused = taken + len(failures)
	failure := errors.Join(failures...)
	switch {
	case len(granted) >= q.need:
		return granted, late, r, nil
	case errors.Is(failure, ErrForeignKey):
		return nil, nil, r, failure
	case ctx.Err() == nil && len(failures) <= len(q.nodes)-q.need:
		return nil, nil, r, ErrTaken // enough answered, but not for us
	default:
		return nil, nil, r, noQuorum(failure)
	}
}

func noQuorum(failure error) error { return fmt.Errorf("%w: %w", ErrNoQuorum, failure) }

// settle writes the lock's fencing token to the nodes that granted it.
func (q *quorum) settle(ctx context.Context, h *holding, granted []int) error {
	votes := poll(ctx, q, h.token, granted, q.timeout, func(ctx context.Context, _ int, n *node) (extension, error) {
		e := n.keep(ctx, []*holding{h}, h.settings.ttl, false)[0]
		return e, e.err
	})
	for range granted {
		switch v, ok := next(ctx, votes); {
		case !ok:
			return noQuorum(ctx.Err())
		case v.err != nil:
			return noQuorum(v.err)
		case !v.answer.held:
			return ErrTaken
		}
	}
	return nil
}

// settleLate does the same, in the background, for nodes that grant the lock
// after the majority was complete, so that the guard accepts the holder there.
// A node that has released it meanwhile is left alone by keep.lua.
func (q *quorum) settleLate(ctx context.Context, h *holding, votes <-chan vote[reply], left int) {
	q.m.background(func() {
		for range left {
			v := <-votes // within the node's time-out
			if v.err != nil || !v.answer.held {
				continue
			}
			q.keep(ctx, h, v.node, h.settings.ttl, false)
		}
	})
}

// abandon gives back, in the background, what a try that failed may have taken.
func (q *quorum) abandon(ctx context.Context, h *holding) {
	q.m.background(func() {
		ctx, cancel := q.m.cleanUp(ctx)
		defer cancel()
		// Whether it was held is of no interest, and nodes that did not answer
		// are seen to by release.
		_, _, _ = q.release(ctx, &h.keys, h.token, "", false) //nolint:errcheck // see above
	})
}

// release gives up the lock on every node. It returns when it is certain that a
// majority held it, or did not; the rest goes on.
func (q *quorum) release(ctx context.Context, k *keys, token, _ string, _ bool) (held, handed bool, err error) {
	kk := *k
	votes := poll(ctx, q, token, everyOne(len(q.nodes)), q.m.cfg.CallTimeout, func(ctx context.Context, _ int, n *node) (bool, error) {
		held, _, err := n.release(ctx, &kk, token, "", false)
		if err != nil {
			q.chase(n, kk, token)
		}
		return held, err
	})
	var failures []error
	for yes, no := 0, 0; ; {
		v, ok := next(ctx, votes)
		switch {
		case !ok:
			return false, false, noQuorum(errors.Join(append(failures, ctx.Err())...))
		case v.err != nil:
			failures = append(failures, v.err)
		case v.answer:
			yes++
		default:
			no++
		}
		switch {
		case yes >= q.need:
			return true, false, nil
		case no > len(q.nodes)-q.need:
			return false, false, nil
		case len(failures) > len(q.nodes)-q.need:
			return false, false, noQuorum(errors.Join(failures...))
		case yes+no+len(failures) == len(q.nodes):
			return true, false, nil // it cannot be told, and what could be is given up
		}
	}
}

// chaseFor is how long at least a node that did not answer is asked to release.
const chaseFor = time.Minute

// chase goes on releasing at a node that did not answer: its script may still be
// on the way to it. A node that was stopped for longer holds the key for one
// TTL once it goes on.
func (q *quorum) chase(n *node, k keys, token string) {
	q.m.background(func() {
		ctx, cancel := context.WithTimeout(q.m.life, max(chaseFor, q.m.cfg.TTL))
		defer cancel()
		for pause := min(q.timeout, time.Second); wait(ctx, pause) && q.m.open(); pause = min(2*pause, time.Second) {
			call, end := context.WithTimeout(ctx, q.m.cfg.CallTimeout)
			_, _, err := n.release(call, &k, token, "", false)
			end()
			if err == nil {
				return
			}
		}
	})
}

func (q *quorum) extend(ctx context.Context, h *holding, ttl time.Duration) extension {
	return q.extendAll(ctx, []*holding{h}, ttl)[0]
}

// extendAll renews the locks on every node, until for each of them a majority
// has, or cannot. Where a majority still had a lock, it is put back on the nodes
// that have lost it; where no majority has it that would bring back a lock that
// another may have held meanwhile.
func (q *quorum) extendAll(ctx context.Context, locks []*holding, ttl time.Duration) []extension {
	votes := poll(ctx, q, "", everyOne(len(q.nodes)), q.timeout, func(ctx context.Context, _ int, n *node) ([]extension, error) {
		return n.keep(ctx, locks, ttl, false), nil
	})
	byNode := make([][]extension, len(q.nodes))
	results := make([]extension, len(locks))
	heard := 0
	for open := true; open && heard < len(q.nodes); {
		v, ok := next(ctx, votes)
		if !ok {
			break
		}
		heard++
		byNode[v.node] = v.answer
		open = false
		for j := range locks {
			var decided bool
			results[j], decided = q.tally(byNode, j)
			open = open || !decided
		}
	}
	if heard == 0 {
		for j := range results {
			results[j] = extension{err: noQuorum(ctx.Err())}
		}
	}
	q.m.background(func() {
		for ; heard < len(q.nodes); heard++ {
			v := <-votes // within the node's time-out
			byNode[v.node] = v.answer
		}
		q.restore(ctx, locks, results, byNode, ttl)
	})
	return results
}

// restore puts locks that a majority extended back on the nodes that have lost
// them.
func (q *quorum) restore(ctx context.Context, locks []*holding, results []extension, byNode [][]extension, ttl time.Duration) {
	for j, h := range locks {
		for i := range q.nodes {
			if !results[j].held || !byNode[i][j].absent {
				continue
			}
			q.m.background(func() { q.keep(ctx, h, i, ttl, true) })
		}
	}
}

// keep runs keep.lua for one lock on one node, in its lane, so that a release
// comes after it. A lock that is being released is not put back. What fails is
// left to the next renewal.
func (q *quorum) keep(ctx context.Context, h *holding, i int, ttl time.Duration, restore bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), q.timeout)
	defer cancel()
	turn, done := q.lineUp(h.token, i)
	defer done()
	if turn(ctx) == nil && (!restore || h.isHeld()) {
		q.nodes[i].keep(ctx, []*holding{h}, ttl, restore)
	}
}

// tally decides from what the nodes have said of the lock with this index; nil
// stands for one that has not answered.
func (q *quorum) tally(byNode [][]extension, j int) (e extension, decided bool) {
	var failures []error
	yes, silent := 0, 0
	for _, said := range byNode {
		switch {
		case said == nil:
			silent++
		case said[j].err != nil:
			failures = append(failures, said[j].err)
		case said[j].held:
			yes++
		}
	}
	switch {
	case yes >= q.need:
		return extension{held: true}, true
	case yes+len(failures)+silent < q.need:
		return extension{}, true
	default:
		// Decided against only where those that are silent cannot change it.
		return extension{err: noQuorum(errors.Join(failures...))}, silent == 0 || yes+silent < q.need
	}
}

// shared is what several nodes say of one holder.
type shared struct {
	Info
	fences map[int64]int // on how many nodes it has which
}

// and adds what another node says. The fence is that of most nodes: one that
// granted late has its own until the lock's is written there.
func (s shared) and(info Info) shared {
	if s.fences == nil {
		return shared{info, map[int64]int{info.Fence: 1}}
	}
	s.fences[info.Fence]++
	if s.fences[info.Fence] > s.fences[s.Fence] {
		s.Fence = info.Fence
	}
	s.Nodes += info.Nodes
	s.Remaining = min(s.Remaining, info.Remaining)
	return s
}

// reasons asks every node; the first that knows one is believed.
func (q *quorum) reasons(ctx context.Context, locks []*holding) []string {
	votes := poll(ctx, q, "", everyOne(len(q.nodes)), q.timeout, func(ctx context.Context, _ int, n *node) ([]string, error) {
		return n.reasons(ctx, locks), nil
	})
	reasons := make([]string, len(locks))
	for range q.need {
		v, ok := next(ctx, votes)
		if !ok {
			break
		}
		for i, reason := range v.answer {
			if reasons[i] == "" {
				reasons[i] = reason
			}
		}
	}
	return reasons
}

// inspect shows the holder that a majority of the nodes names. The time that
// remains is the shortest among them. Without waiters to list it returns as soon
// as a majority agrees.
func (q *quorum) inspect(ctx context.Context, k *keys, waiters int) (Info, error) {
	kk := *k
	votes := poll(ctx, q, "", everyOne(len(q.nodes)), q.timeout, func(ctx context.Context, _ int, n *node) (Info, error) {
		return n.inspect(ctx, &kk, waiters)
	})
	var failures []error
	var free Info
	byToken := make(map[string]shared)
	notHeld := 0
	for range q.nodes {
		v, ok := next(ctx, votes)
		switch {
		case !ok:
			failures = append(failures, ctx.Err())
		case v.err != nil:
			failures = append(failures, v.err)
		case !v.answer.Held:
			free.Fence = max(free.Fence, v.answer.Fence)
			notHeld++
		default:
			info := byToken[v.answer.Holder.Token].and(v.answer)
			byToken[v.answer.Holder.Token] = info
			if info.Nodes >= q.need && waiters == 0 {
				return info.Info, nil
			}
		}
		if notHeld >= q.need && waiters == 0 {
			return free, nil
		}
	}
	for _, info := range byToken {
		if info.Nodes >= q.need {
			return info.Info, nil
		}
	}
	if failure := errors.Join(failures...); errors.Is(failure, ErrForeignKey) {
		return Info{}, failure
	} else if len(failures) > len(q.nodes)-q.need {
		return Info{}, noQuorum(failure)
	}
	return free, nil
}

// forceRelease takes the lock from whoever holds it, on every node.
func (q *quorum) forceRelease(ctx context.Context, k *keys, token, reason string) (held bool, from string, handed bool, err error) {
	info, err := q.inspect(ctx, k, 0)
	if err != nil {
		return false, "", false, err
	}
	kk := *k
	votes := poll(ctx, q, "", everyOne(len(q.nodes)), q.timeout, func(ctx context.Context, _ int, n *node) (bool, error) {
		held, _, _, err := n.forceRelease(ctx, &kk, token, reason)
		return held, err
	})
	var failures []error
	yes := 0
	for heard := 0; heard < q.need; {
		v, ok := next(ctx, votes)
		switch {
		case !ok:
			return yes > 0, info.Holder.Token, false, noQuorum(errors.Join(append(failures, ctx.Err())...))
		case v.err != nil:
			if failures = append(failures, v.err); len(failures) > len(q.nodes)-q.need {
				return yes > 0, info.Holder.Token, false, noQuorum(errors.Join(failures...))
			}
			continue
		case v.answer:
			yes++
		}
		heard++
	}
	return yes > 0, info.Holder.Token, false, nil
}

// keep runs keep.lua for locks of a quorum on one node.
func (n *node) keep(ctx context.Context, locks []*holding, ttl time.Duration, restore bool) []extension {
	return n.pipelined(ctx, n.rdb.Pipeline(), everyOne(len(locks)), make([]extension, len(locks)), func(pipe redis.Scripter, run scriptCall, i int) *redis.Cmd {
		h := locks[i]
		return run(keepScript, ctx, pipe, []string{h.keys[keyLock], h.keys[keyFence]},
			h.token, h.fence, h.settings.meta, n.args.ms(ttl), index(restore))
	})
}
