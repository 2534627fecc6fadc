package breaker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// DialHook does not guard dialling. A call that needs a connection is judged by its result, and
// a subscription, which is not a call, may always dial.
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

// ProcessPipelineHook guards a pipeline, which is sent or refused as a whole.
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

// witness records whether any attempt of a cluster call was sent.
type witness struct{}

type sentKey struct{}

// noteSent records that an attempt was sent, if the context has a witness.
func noteSent(ctx context.Context) {
	if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(true)
	}
}

// DialHook does nothing.
func (witness) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook records the attempts of a single call.
func (witness) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		var sent atomic.Bool
		err := amend(next(context.WithValue(ctx, sentKey{}, &sent), cmd), &sent)
		if errors.Is(err, ErrSentBefore) {
			cmd.SetErr(err)
		}
		return err
	}
}

// ProcessPipelineHook records the attempts of a pipeline. Its parts may go to different nodes:
// once any part was sent, no command returns ErrOpen.
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

// amend replaces ErrOpen if an earlier attempt was sent.
func amend(err error, sent *atomic.Bool) error {
	if errors.Is(err, ErrOpen) && sent.Load() {
		return fmt.Errorf("%w (%s)", ErrSentBefore, err.Error())
	}
	return err
}
