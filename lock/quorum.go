package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// quorum is a store on several independent nodes: a lock is held while a
// majority of them holds it. The method is Redlock
// (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/);
// the fencing tokens are an addition to it.
//
// All nodes are asked concurrently, and a call returns as soon as the result is decided: a
// node that hangs costs time only if it is needed. Its call continues in the background
// until its timeout.
type quorum struct {
	m       *Manager
	nodes   []*node
	need    int // a majority
	timeout time.Duration

	mu    sync.Mutex
	lanes map[lane]chan struct{} // closed when the lane's last call has returned
}

// NewQuorum returns a manager whose locks are held by a majority of at least three
// independent Redis nodes, so that the loss of a minority loses no lock. It works like
// the manager of New, with these differences: waiters poll (see Config.Poll) and are
// served in no order, a release hands nothing over, and an acquire takes two round
// trips. The errors are ErrInvalid.
//
// It does not protect against all failures: if a node loses a lock before its TTL has
// passed (a restart without durable storage) or its clock jumps, a second majority can
// form. Keep a node that lost its data out of service for one TTL, and check the fencing
// token in the data store, which also rejects holders that stalled. See the README.
func NewQuorum(nodes []redis.UniversalClient, cfg Config) (*Manager, error) {
	cfg, err := quorumConfig(cfg)
	if err != nil {
		return nil, err
	}
	if len(nodes) < 3 {
		return nil, fmt.Errorf("%w argument: %d nodes, a quorum needs at least 3", ErrInvalid, len(nodes))
	}
	m := makeManager(cfg)
	m.bounded = true // each node's call runs on its own goroutine
	q := &quorum{m: m, need: len(nodes)/2 + 1, timeout: cfg.NodeTimeout, lanes: make(map[lane]chan struct{})}
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
	}
	return cfg, nil
}

// acquire takes the lock on a majority and then stores the greatest of their fencing
// tokens on all of those nodes before the lock counts. The majority of the next holder
// shares a node with this one, which mints a greater token.
func (q *quorum) acquire(ctx context.Context, a *attempt) (reply, error) {
	started := time.Now()
	// Each try has a new token: the previous try is still being released, and must not be
	// mistaken for this one.
	a.token = q.m.newToken()
	h := &holding{keys: a.keys, settings: a.settings, token: a.token}
	b := new(ballot)
	err := q.collect(ctx, h, b)
	if err == nil {
		h.fence = b.reply.fence
		err = q.settle(ctx, h, b)
	}
	if left := validity(a.settings.ttl) - time.Since(started); err == nil && left <= 0 {
		err = fmt.Errorf("%w: the acquisition took longer than the TTL", ErrNoQuorum)
	}
	if err == nil {
		q.settleLate(ctx, h, b)
		b.reply.held = true
		return b.reply, nil
	}
	q.abandon(ctx, h, b)
	if errors.Is(err, ErrTaken) {
		return b.reply, nil
	}
	return b.reply, err
}

// ballot is the state of one try to take the lock on the nodes.
type ballot struct {
	reply   reply
	votes   <-chan vote[reply]
	open    int   // votes not yet counted
	granted []int // nodes that granted the lock
	refused []int // nodes that certainly hold nothing of this try
}

// count counts one vote.
func (b *ballot) count(v vote[reply]) {
	b.open--
	b.reply.repaired = b.reply.repaired || v.answer.repaired
	switch {
	case v.err == nil && v.answer.held:
		b.granted = append(b.granted, v.node)
	case v.err == nil || errors.Is(v.err, ErrForeignKey):
		b.refused = append(b.refused, v.node)
	}
}

// collect asks every node for the lock until a majority has granted it or can no longer
// do so. The error is ErrTaken if others hold it, ErrForeignKey if foreign keys rule out a
// majority, or ErrNoQuorum.
func (q *quorum) collect(ctx context.Context, h *holding, b *ballot) error {
	b.open = len(q.nodes)
	b.votes = poll(ctx, q, h.token, upTo(len(q.nodes)), q.timeout, func(ctx context.Context, n *node) (reply, error) {
		return n.acquire(ctx, &attempt{keys: h.keys, settings: h.settings, token: h.token})
	})
	var failures []error
	taken, foreign := 0, 0
	for len(b.granted) < q.need && len(q.nodes)-taken-foreign-len(failures) >= q.need {
		v, ok := next(ctx, b.votes)
		if !ok {
			return noQuorum(errors.Join(append(failures, ctx.Err())...))
		}
		b.count(v)
		switch {
		case errors.Is(v.err, ErrForeignKey):
			foreign++
		case v.err != nil:
			failures = append(failures, v.err)
		case v.answer.held:
			b.reply.fence = max(b.reply.fence, v.answer.fence)
		default:
			taken++
		}
	}
	some := len(q.nodes) - q.need // nodes that may be missing
	switch {
	case len(b.granted) >= q.need:
		return nil
	case foreign > some:
		return ErrForeignKey
	case foreign+len(failures) <= some:
		return ErrTaken // enough nodes answered, but refused
	default:
		return noQuorum(errors.Join(failures...))
	}
}

func noQuorum(failure error) error { return fmt.Errorf("%w: %w", ErrNoQuorum, failure) }

// settle writes the lock's fencing token to a majority of the nodes that granted it. A node
// that fails is replaced by one that grants the lock late.
func (q *quorum) settle(ctx context.Context, h *holding, b *ballot) error {
	votes := poll(ctx, q, h.token, b.granted, q.timeout, func(ctx context.Context, n *node) (extension, error) {
		e := n.keep(ctx, []*holding{h}, h.settings.ttl, false)[0]
		return e, e.err
	})
	settled := 0
	var failures []error
	for range b.granted {
		switch v, ok := next(ctx, votes); {
		case !ok:
			return noQuorum(ctx.Err())
		case v.err != nil:
			failures = append(failures, v.err)
		case v.answer.held:
			settled++
		}
	}
	for settled < q.need && b.open > 0 {
		v, ok := next(ctx, b.votes)
		if !ok {
			break
		}
		if b.count(v); v.err == nil && v.answer.held && q.keep(ctx, h, v.node, h.settings.ttl, false) {
			settled++
		}
	}
	switch {
	case settled >= q.need:
		return nil
	case len(failures) == 0:
		return ErrTaken
	default:
		return noQuorum(errors.Join(failures...))
	}
}

// settleLate writes the fencing token, in the background, to nodes that grant the lock after
// the majority was complete, so that the guard accepts the holder there. keep.lua does not
// change a node that has released the lock.
func (q *quorum) settleLate(ctx context.Context, h *holding, b *ballot) {
	q.m.background(func() {
		for range b.open {
			v := <-b.votes // within the node's timeout
			if v.err == nil && v.answer.held {
				q.keep(ctx, h, v.node, h.settings.ttl, false)
			}
		}
	})
}

// abandon releases, in the background, the locks that a failed try may have taken.
func (q *quorum) abandon(ctx context.Context, h *holding, b *ballot) {
	nodes := slices.DeleteFunc(upTo(len(q.nodes)), func(i int) bool { return slices.Contains(b.refused, i) })
	q.releaseOn(ctx, nodes, &h.keys, h.token)
}

// release releases the lock on every node. It returns when it is certain whether a majority
// held it; the other calls continue.
func (q *quorum) release(ctx context.Context, k *keys, token, _ string) (held, handed bool, err error) {
	votes := q.releaseOn(ctx, upTo(len(q.nodes)), k, token)
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
			return true, false, nil // undecidable, and released on every node that answered
		}
	}
}

// releaseOn releases the lock of a token on these nodes, after the calls for the token that
// are already in their lanes. On a node that does not answer, the lock expires with its TTL.
func (q *quorum) releaseOn(ctx context.Context, nodes []int, k *keys, token string) <-chan vote[bool] {
	kk := *k
	// The release must be done even if ctx ends.
	return poll(context.WithoutCancel(ctx), q, token, nodes, q.m.cfg.CallTimeout, func(ctx context.Context, n *node) (bool, error) {
		held, _, err := n.release(ctx, &kk, token, "")
		return held, err
	})
}

func (q *quorum) extend(ctx context.Context, h *holding, ttl time.Duration) extension {
	return q.extendAll(ctx, []*holding{h}, ttl)[0]
}

// extendAll renews the locks on every node until the result for each of them is decided. A
// lock that a majority still held is restored on the nodes that lost it. Without a majority
// that could restore a lock that another client has held in the meantime.
func (q *quorum) extendAll(ctx context.Context, locks []*holding, ttl time.Duration) []extension {
	votes := poll(ctx, q, "", upTo(len(q.nodes)), q.timeout, func(ctx context.Context, n *node) ([]extension, error) {
		return n.keep(ctx, locks, ttl, false), nil
	})
	byNode := make([][]extension, len(q.nodes))
	results := make([]extension, len(locks))
	replied := 0
	for open := true; open && replied < len(q.nodes); {
		v, ok := next(ctx, votes)
		if !ok {
			break
		}
		replied++
		byNode[v.node] = v.answer
		open = false
		for j := range locks {
			var decided bool
			results[j], decided = q.tally(byNode, j)
			open = open || !decided
		}
	}
	if replied == 0 {
		for j := range results {
			results[j] = extension{err: noQuorum(ctx.Err())}
		}
	}
	q.m.background(func() {
		for ; replied < len(q.nodes); replied++ {
			v := <-votes // within the node's timeout
			byNode[v.node] = v.answer
		}
		q.restore(ctx, locks, results, byNode, ttl)
	})
	return results
}

// restore sets locks that a majority extended on the nodes that lost them.
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

// keep runs keep.lua for one lock on one node and reports whether it succeeded. It uses the
// token's lane, so that a release comes after it. It does not restore a lock that is being
// released. The next renewal repeats a failed call.
func (q *quorum) keep(ctx context.Context, h *holding, i int, ttl time.Duration, restore bool) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), q.timeout)
	defer cancel()
	turn, done := q.lineUp(h.token, i)
	defer done()
	turn()
	if restore && !h.isHeld() {
		return false
	}
	return q.nodes[i].keep(ctx, []*holding{h}, ttl, restore)[0].held
}

// tally decides the result for the lock with this index from the nodes' replies; nil is a
// node that has not replied.
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
		// Decided only if the silent nodes cannot change the result.
		return extension{err: noQuorum(errors.Join(failures...))}, silent == 0 || yes+silent < q.need
	}
}

// agreed combines the replies of nodes with the same holder. The fence is that of most nodes: a
// node that granted late has its own until the lock's fence is written there.
func agreed(infos []Info) Info {
	all, votes := infos[0], make(map[int64]int)
	all.Nodes = len(infos)
	for _, info := range infos {
		all.Remaining = min(all.Remaining, info.Remaining)
		if votes[info.Fence]++; votes[info.Fence] > votes[all.Fence] {
			all.Fence = info.Fence
		}
	}
	return all
}

// inspect returns the holder on a majority of the nodes, with the shortest remaining time
// among them. If no waiters are to be listed, it returns as soon as a majority agrees.
func (q *quorum) inspect(ctx context.Context, k *keys, waiters int) (Info, error) {
	kk := *k
	votes := poll(ctx, q, "", upTo(len(q.nodes)), q.timeout, func(ctx context.Context, n *node) (Info, error) {
		return n.inspect(ctx, &kk, waiters)
	})
	var failures []error
	var free Info
	byToken := make(map[string][]Info)
	notHeld, foreign := 0, 0
	for range q.nodes {
		v, ok := next(ctx, votes)
		switch {
		case !ok:
			failures = append(failures, ctx.Err())
		case errors.Is(v.err, ErrForeignKey):
			foreign++
		case v.err != nil:
			failures = append(failures, v.err)
		case !v.answer.Held:
			free.Fence = max(free.Fence, v.answer.Fence)
			notHeld++
		default:
			same := append(byToken[v.answer.Holder.Token], v.answer)
			byToken[v.answer.Holder.Token] = same
			if len(same) >= q.need && waiters == 0 {
				return agreed(same), nil
			}
		}
		if notHeld >= q.need && waiters == 0 {
			return free, nil
		}
	}
	for _, same := range byToken {
		if len(same) >= q.need {
			return agreed(same), nil
		}
	}
	switch some := len(q.nodes) - q.need; {
	case foreign > some:
		return Info{}, ErrForeignKey
	case len(failures)+foreign > some:
		return Info{}, noQuorum(errors.Join(failures...))
	default:
		return free, nil
	}
}
