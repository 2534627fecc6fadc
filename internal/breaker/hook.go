package breaker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// DialHook leaves dialling alone. The calls that need a connection are judged by
// how they end, and a subscription, which is no call, may try whenever it wants.
func (n *node) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook guards a single call.
func (n *node) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := n.call(ctx, blocking[cmd.Name()], func() error {
			noteSent(ctx)
			return next(ctx, cmd)
		})
		if errors.Is(err, ErrOpen) {
			cmd.SetErr(err)
		}
		return err
	}
}

// ProcessPipelineHook guards a pipeline, which is refused or let through whole.
func (n *node) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		blocks := false
		for _, cmd := range cmds {
			blocks = blocks || blocking[cmd.Name()]
		}
		let := false
		err := n.call(ctx, blocks, func() error {
			let = true
			noteSent(ctx)
			return next(ctx, cmds)
		})
		if !let {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
		}
		return err
	}
}

// witness sees whether any try of a cluster's call was let through.
type witness struct{}

type sentKey struct{}

// noteSent tells the witness, where there is one.
func noteSent(ctx context.Context) {
	if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(true)
	}
}

// DialHook leaves dialling alone.
func (witness) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook watches a single call.
func (witness) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		var sent atomic.Bool
		err := amend(next(context.WithValue(ctx, sentKey{}, &sent), cmd), &sent)
		if errors.Is(err, errSentBefore) {
			cmd.SetErr(err)
		}
		return err
	}
}

// ProcessPipelineHook watches a pipeline. Parts of it may have gone to one node and
// not to another; if any was sent, none counts as not sent.
func (witness) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		var sent atomic.Bool
		err := next(context.WithValue(ctx, sentKey{}, &sent), cmds)
		for _, cmd := range cmds {
			if was := cmd.Err(); errors.Is(was, ErrOpen) {
				cmd.SetErr(amend(was, &sent))
			}
		}
		return amend(err, &sent)
	}
}

// amend takes the promise of ErrOpen back where it does not hold.
func amend(err error, sent *atomic.Bool) error {
	if errors.Is(err, ErrOpen) && sent.Load() {
		return fmt.Errorf("%w (%s)", errSentBefore, err.Error())
	}
	return err
}
