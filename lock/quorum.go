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

	mu      sync.Mutex
	pending map[string]*underWay // by token: acquires that not every node has answered
}

// underWay are the calls of one acquire. A release waits for that on its node,
// because the node might run it first otherwise.
type underWay struct {
	ended []chan struct{} // by node
	left  int
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
	q := &quorum{m: m, need: len(nodes)/2 + 1, timeout: cfg.NodeTimeout, pending: make(map[string]*underWay)}
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

// poll asks the chosen nodes at once, each for at most the node's timeout, and
// returns their votes as they come in.
func poll[T any](ctx context.Context, q *quorum, chosen []int, ask func(ctx context.Context, i int, n *node) (T, error)) <-chan vote[T] {
	votes := make(chan vote[T], len(chosen))
	for _, i := range chosen {
		q.m.background(func() {
			// The calls go on when the caller has heard enough.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), q.timeout)
			defer cancel()
			answer, err := ask(ctx, i, q.nodes[i])
			if err != nil {
				err = fmt.Errorf("node %d: %w", i, err)
			}
			votes <- vote[T]{i, answer, err}
		})
	}
	return votes
}

// acquire takes the lock on a majority, and then stores the greatest of their
// fencing tokens on all of those before it counts: the majority of whoever is
// next shares a node with this one, and there mints a greater token.
func (q *quorum) acquire(ctx context.Context, a *attempt) (reply, error) {
	started := time.Now()
	// A name of its own for each try: what is left of the try before is being
	// given back, and must not be mistaken for this one's.
	a.token = q.m.newToken()
	granted, r, err := q.collect(ctx, a)
	if err == nil {
		err = q.settle(ctx, a, granted, r.fence)
	}
	if left := validity(a.settings.ttl) - time.Since(started); err == nil && left <= 0 {
		err = fmt.Errorf("%w: taking it lasted longer than its TTL", ErrNoQuorum)
	}
	switch {
	case err == nil:
		r.held = true
		return r, nil
	case errors.Is(err, ErrTaken):
		q.abandon(ctx, a)
		return r, nil
	default:
		q.abandon(ctx, a)
		return r, err
	}
}

// collect asks every node for the lock until a majority has granted it or
// cannot any more. The error is ErrTaken when others hold it, ErrForeignKey, or
// ErrNoQuorum with those of the nodes.
func (q *quorum) collect(ctx context.Context, a *attempt) (granted []int, r reply, err error) {
	keys, set, token := a.keys, a.settings, a.token
	u := q.start(token)
	votes := poll(ctx, q, everyOne(len(q.nodes)), func(ctx context.Context, i int, n *node) (reply, error) {
		defer q.ended(token, u, i)
		return n.runAcquire(ctx, n.run, &attempt{keys: keys, settings: set, token: token})
	})
	var failures []error
	taken := 0
	for len(granted) < q.need && len(q.nodes)-taken-len(failures) >= q.need {
		v := <-votes
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
	failure := errors.Join(failures...)
	switch {
	case len(granted) >= q.need:
		return granted, r, nil
	case errors.Is(failure, ErrForeignKey):
		return nil, r, failure
	case len(failures) <= len(q.nodes)-q.need:
		return nil, r, ErrTaken // enough answered, but not for us
	default:
		return nil, r, noQuorum(failure)
	}
}

func noQuorum(failure error) error { return fmt.Errorf("%w: %w", ErrNoQuorum, failure) }

// settle writes the lock's fencing token to the nodes that granted it.
func (q *quorum) settle(ctx context.Context, a *attempt, granted []int, fence int64) error {
	h := &holding{keys: a.keys, settings: a.settings, token: a.token, fence: fence}
	votes := poll(ctx, q, granted, func(ctx context.Context, _ int, n *node) (extension, error) {
		e := n.keep(ctx, []*holding{h}, a.settings.ttl, false)[0]
		return e, e.err
	})
	for range granted {
		switch v := <-votes; {
		case v.err != nil:
			return noQuorum(v.err)
		case !v.answer.held:
			return ErrTaken
		}
	}
	return nil
}

// abandon gives back, in the background, what a try that failed may have taken.
func (q *quorum) abandon(ctx context.Context, a *attempt) {
	keys, token := a.keys, a.token
	q.m.background(func() {
		ctx, cancel := q.m.cleanUp(ctx)
		defer cancel()
		// Whether it was held is of no interest, and nodes that did not answer
		// are seen to by release.
		_, _, _ = q.release(ctx, &keys, token, "", false) //nolint:errcheck // see above
	})
}

// release gives up the lock on every node. It returns when it is certain that a
// majority held it, or did not; the rest goes on.
func (q *quorum) release(ctx context.Context, k *keys, token, _ string, _ bool) (held, handed bool, err error) {
	kk := *k
	votes := poll(ctx, q, everyOne(len(q.nodes)), func(ctx context.Context, i int, n *node) (bool, error) {
		q.awaitAcquire(ctx, token, i)
		held, _, err := n.release(ctx, &kk, token, "", false)
		if err != nil {
			q.chase(n, kk, token)
		}
		return held, err
	})
	var failures []error
	for yes, no := 0, 0; ; {
		v := <-votes
		switch {
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

// chase goes on releasing at a node that did not answer, for one TTL: its
// script may still be on the way to it. After that the key has lapsed, unless
// the node was stopped; then it holds the key for one TTL once it goes on.
func (q *quorum) chase(n *node, k keys, token string) {
	q.m.background(func() {
		ctx, cancel := context.WithTimeout(q.m.life, q.m.cfg.TTL)
		defer cancel()
		for pause := q.timeout; wait(ctx, pause) && q.m.open(); pause = min(2*pause, time.Second) {
			call, end := context.WithTimeout(ctx, q.timeout)
			_, _, err := n.release(call, &k, token, "", false)
			end()
			if err == nil {
				return
			}
		}
	})
}

// start notes that a token's acquire is under way on every node.
func (q *quorum) start(token string) *underWay {
	u := &underWay{ended: make([]chan struct{}, len(q.nodes)), left: len(q.nodes)}
	for i := range u.ended {
		u.ended[i] = make(chan struct{})
	}
	q.mu.Lock()
	q.pending[token] = u
	q.mu.Unlock()
	return u
}

func (q *quorum) ended(token string, u *underWay, i int) {
	close(u.ended[i])
	q.mu.Lock()
	defer q.mu.Unlock()
	if u.left--; u.left == 0 {
		delete(q.pending, token)
	}
}

func (q *quorum) awaitAcquire(ctx context.Context, token string, i int) {
	q.mu.Lock()
	u := q.pending[token]
	q.mu.Unlock()
	if u == nil {
		return
	}
	select {
	case <-u.ended[i]:
	case <-ctx.Done():
	}
}

func (q *quorum) extend(ctx context.Context, h *holding, ttl time.Duration) extension {
	return q.extendAll(ctx, []*holding{h}, ttl)[0]
}

// extendAll renews the locks on every node. Where a majority still had a lock,
// it is put back on the nodes that have lost it; where no majority has it that
// would bring back a lock that another may have held meanwhile.
func (q *quorum) extendAll(ctx context.Context, locks []*holding, ttl time.Duration) []extension {
	votes := poll(ctx, q, everyOne(len(q.nodes)), func(ctx context.Context, _ int, n *node) ([]extension, error) {
		return n.keep(ctx, locks, ttl, false), nil
	})
	byNode := make([][]extension, len(q.nodes))
	for range q.nodes {
		v := <-votes
		byNode[v.node] = v.answer
	}
	results := make([]extension, len(locks))
	restore := make(map[int][]*holding) // by node
	for j, h := range locks {
		results[j] = q.tally(byNode, j)
		for i := range q.nodes {
			if results[j].held && byNode[i][j].absent {
				restore[i] = append(restore[i], h)
			}
		}
	}
	for i, lost := range restore {
		q.m.background(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), q.timeout)
			defer cancel()
			q.nodes[i].keep(ctx, lost, ttl, true) // what fails now is tried at the next renewal
		})
	}
	return results
}

// tally decides from what every node said of the lock with this index.
func (q *quorum) tally(byNode [][]extension, j int) extension {
	var failures []error
	reason, yes := "", 0
	for _, said := range byNode {
		switch e := said[j]; {
		case e.err != nil:
			failures = append(failures, e.err)
		case e.held:
			yes++
		case e.reason != "":
			reason = e.reason
		}
	}
	switch {
	case yes >= q.need:
		return extension{held: true}
	case yes+len(failures) >= q.need:
		return extension{err: noQuorum(errors.Join(failures...))}
	default:
		return extension{reason: reason}
	}
}

// inspect shows the holder that a majority of the nodes names. The time that
// remains is the shortest among them.
func (q *quorum) inspect(ctx context.Context, k *keys, waiters int) (Info, error) {
	kk := *k
	votes := poll(ctx, q, everyOne(len(q.nodes)), func(ctx context.Context, _ int, n *node) (Info, error) {
		return n.inspect(ctx, &kk, waiters)
	})
	var failures []error
	var free Info
	byToken := make(map[string]Info)
	fences := make(map[Holder]map[int64]int) // on how many nodes each holder has which
	for range q.nodes {
		v := <-votes
		switch {
		case v.err != nil:
			failures = append(failures, v.err)
		case !v.answer.Held:
			free.Fence = max(free.Fence, v.answer.Fence)
		default:
			holder, fence := v.answer.Holder, v.answer.Fence
			if fences[holder] == nil {
				fences[holder] = make(map[int64]int)
			}
			fences[holder][fence]++
			if known, ok := byToken[holder.Token]; ok {
				v.answer.Nodes += known.Nodes
				v.answer.Remaining = min(v.answer.Remaining, known.Remaining)
				// A node that granted late has its own fence until it is renewed.
				if fences[holder][known.Fence] > fences[holder][fence] {
					v.answer.Fence = known.Fence
				}
			}
			byToken[holder.Token] = v.answer
		}
	}
	for _, info := range byToken {
		if info.Nodes >= q.need {
			return info, nil
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
	votes := poll(ctx, q, everyOne(len(q.nodes)), func(ctx context.Context, _ int, n *node) (bool, error) {
		held, _, _, err := n.forceRelease(ctx, &kk, token, reason)
		return held, err
	})
	var failures []error
	yes := 0
	for range q.nodes {
		v := <-votes
		switch {
		case v.err != nil:
			failures = append(failures, v.err)
		case v.answer:
			yes++
		}
	}
	if len(failures) > len(q.nodes)-q.need {
		return yes > 0, info.Holder.Token, false, noQuorum(errors.Join(failures...))
	}
	return yes > 0, info.Holder.Token, false, nil
}

// keep runs keep.lua for locks of a quorum on one node.
func (n *node) keep(ctx context.Context, locks []*holding, ttl time.Duration, restore bool) []extension {
	return n.pipelined(ctx, n.rdb.Pipeline(), everyOne(len(locks)), make([]extension, len(locks)), func(pipe redis.Scripter, run scriptCall, i int) *redis.Cmd {
		h := locks[i]
		return run(keepScript, ctx, pipe, []string{h.keys[keyLock], h.keys[keyFence], h.keys[keyForced]},
			h.token, h.fence, h.settings.meta, n.args.ms(ttl), index(restore))
	})
}
