package lock

import (
	"context"
	"errors"
	"fmt"
	"net"
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

	mu     sync.Mutex
	lanes  map[laneKey]*lane
	chased [][]chased // by node: what is still to be released there
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
	q.chased = make([][]chased, len(nodes))
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

func (q *quorum) queues() bool  { return false }
func (q *quorum) bounded() bool { return true } // each node's call runs on a goroutine of its own

// acquire takes the lock on a majority, and then stores the greatest of their
// fencing tokens on all of those before it counts: the majority of whoever is
// next shares a node with this one, and there mints a greater token.
func (q *quorum) acquire(ctx context.Context, a *attempt) (reply, error) {
	started := time.Now()
	// A name of its own for each try: what is left of the try before is being
	// given back, and must not be mistaken for this one's.
	a.token = q.m.newToken()
	h := &holding{keys: a.keys, settings: a.settings, token: a.token}
	b := new(ballot)
	err := q.collect(ctx, h, b)
	if err == nil {
		h.fence = b.reply.fence
		err = q.settle(ctx, h, b)
	}
	if left := validity(a.settings.ttl) - time.Since(started); err == nil && left <= 0 {
		err = fmt.Errorf("%w: taking it lasted longer than its TTL", ErrNoQuorum)
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

// ballot is what came of asking the nodes for a lock.
type ballot struct {
	reply   reply
	votes   <-chan vote[reply]
	open    int   // votes that have not been looked at
	granted []int // the nodes that did
	stained []int // those of which it is not certain that they have nothing of this try
}

// count looks at one vote.
func (b *ballot) count(v vote[reply]) {
	b.open--
	b.reply.repaired = b.reply.repaired || v.answer.repaired
	switch {
	case v.err != nil:
	case v.answer.held:
		b.granted = append(b.granted, v.node)
	default:
		b.reply.lapse = max(b.reply.lapse, v.answer.lapse)
	}
	if !clean(v) {
		b.stained = append(b.stained, v.node)
	}
}

// clean says that a node certainly has nothing of the try that it voted on.
func clean(v vote[reply]) bool {
	if v.err != nil {
		return neverSent(v.err) || errors.Is(v.err, ErrForeignKey)
	}
	return !v.answer.held
}

// neverSent says that there was no connection to send a call over.
func neverSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// collect asks every node for the lock until a majority has granted it or
// cannot any more. The error is ErrTaken when others hold it, ErrForeignKey when
// foreign keys alone rule out a majority, or ErrNoQuorum.
func (q *quorum) collect(ctx context.Context, h *holding, b *ballot) error {
	b.open = len(q.nodes)
	b.votes = poll(ctx, q, h.token, everyOne(len(q.nodes)), q.timeout, func(ctx context.Context, _ int, n *node) (reply, error) {
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
	some := len(q.nodes) - q.need // that may be missing
	switch {
	case len(b.granted) >= q.need:
		return nil
	case foreign > some:
		return ErrForeignKey
	case foreign+len(failures) <= some:
		return ErrTaken // enough answered, but not for us
	default:
		return noQuorum(errors.Join(failures...))
	}
}

func noQuorum(failure error) error { return fmt.Errorf("%w: %w", ErrNoQuorum, failure) }

// settle writes the lock's fencing token to a majority of those that granted it.
// A node that fails meanwhile is replaced by one that grants it late.
func (q *quorum) settle(ctx context.Context, h *holding, b *ballot) error {
	votes := poll(ctx, q, h.token, b.granted, q.timeout, func(ctx context.Context, _ int, n *node) (extension, error) {
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

// settleLate does the same, in the background, for nodes that grant the lock
// after the majority was complete, so that the guard accepts the holder there.
// A node that has released it meanwhile is left alone by keep.lua.
func (q *quorum) settleLate(ctx context.Context, h *holding, b *ballot) {
	q.m.background(func() {
		for range b.open {
			v := <-b.votes // within the node's time-out
			if v.err == nil && v.answer.held {
				q.keep(ctx, h, v.node, h.settings.ttl, false)
			}
		}
	})
}

// abandon gives back, in the background, what a try that failed may have taken.
// Nodes that certainly have nothing of it are left alone, also those that say so
// when the try has failed already.
func (q *quorum) abandon(ctx context.Context, h *holding, b *ballot) {
	q.releaseOn(ctx, b.stained, &h.keys, h.token) // what does not answer is chased
	votes, open := b.votes, b.open
	q.m.background(func() {
		var releases []<-chan vote[bool]
		for range open {
			if v := <-votes; !clean(v) { // within the node's time-out
				releases = append(releases, q.releaseOn(ctx, []int{v.node}, &h.keys, h.token))
			}
		}
		for _, released := range releases {
			<-released // whoever waits for this waits for them
		}
	})
}

// release gives up the lock on every node. It returns when it is certain that a
// majority held it, or did not; the rest goes on.
func (q *quorum) release(ctx context.Context, k *keys, token, _ string) (held, handed bool, err error) {
	votes := q.releaseOn(ctx, everyOne(len(q.nodes)), k, token)
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

// releaseOn gives up what a token has on these nodes, after what is under way
// for it there.
func (q *quorum) releaseOn(ctx context.Context, nodes []int, k *keys, token string) <-chan vote[bool] {
	kk := *k
	// It must be done although ctx may end soon.
	return poll(context.WithoutCancel(ctx), q, token, nodes, q.m.cfg.CallTimeout, func(ctx context.Context, i int, n *node) (bool, error) {
		held, _, err := n.release(ctx, &kk, token, "")
		if err != nil {
			q.chase(i, chased{kk, token, time.Now().Add(max(chaseFor, q.m.cfg.TTL))})
		}
		return held, err
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
// comes after it, and says whether that did it. A lock that is being released is
// not put back. What fails is left to the next renewal.
func (q *quorum) keep(ctx context.Context, h *holding, i int, ttl time.Duration, restore bool) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), q.timeout)
	defer cancel()
	turn, done := q.lineUp(h.token, i)
	defer done()
	if turn(ctx) != nil || restore && !h.isHeld() {
		return false
	}
	return q.nodes[i].keep(ctx, []*holding{h}, ttl, restore)[0].held
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
	switch some := len(q.nodes) - q.need; {
	case foreign > some:
		return Info{}, ErrForeignKey
	case len(failures)+foreign > some:
		return Info{}, noQuorum(errors.Join(failures...))
	default:
		return free, nil
	}
}

// forceRelease takes the lock from whoever holds it, on every node.
func (q *quorum) forceRelease(ctx context.Context, k *keys, reason string) (held bool, from string, handed bool, err error) {
	info, err := q.inspect(ctx, k, 0)
	if err != nil {
		return false, "", false, err
	}
	kk := *k
	votes := poll(ctx, q, "", everyOne(len(q.nodes)), q.timeout, func(ctx context.Context, _ int, n *node) (bool, error) {
		held, _, _, err := n.forceRelease(ctx, &kk, reason)
		return held, err
	})
	var failures []error
	yes := 0
	// Every node that answers in time is waited for: the guard is to refuse the
	// former holder on all of them.
	heard := 0
	for range q.nodes {
		v, ok := next(ctx, votes)
		if !ok {
			failures = append(failures, ctx.Err())
			break
		}
		switch {
		case v.err != nil:
			failures = append(failures, v.err)
			continue
		case v.answer:
			yes++
		}
		heard++
	}
	if heard < q.need {
		err = noQuorum(errors.Join(failures...))
	}
	return yes > 0, info.Holder.Token, false, err
}

// keep runs keep.lua for locks of a quorum on one node.
func (n *node) keep(ctx context.Context, locks []*holding, ttl time.Duration, restore bool) []extension {
	return n.pipelined(ctx, n.rdb.Pipeline(), everyOne(len(locks)), make([]extension, len(locks)), func(pipe redis.Scripter, run scriptCall, i int) *redis.Cmd {
		h := locks[i]
		return run(keepScript, ctx, pipe, []string{h.keys[keyLock], h.keys[keyFence], h.keys[keyForced]},
			h.token, h.fence, h.settings.meta, n.args.ms(ttl), index(restore))
	})
}
