package queue

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// Load is what decides whether more tasks should come: how much waits, and how
// fast it goes. It costs Redis less than Stats.
type Load struct {
	// Length is how many tasks count for MaxLength: ready, delayed and leased.
	Length int
	// Delayed is how many of them are in the delayed set: not due yet, or due and not
	// promoted, which the next dequeue does.
	Delayed int
	// OldestReady is how long the task at the head has been waiting; 0 where none is.
	OldestReady time.Duration
	// Done is how many tasks were acknowledged in the Minute since 1970 by the clock
	// of Redis, so far: the difference of two looks within a minute is the pace.
	Minute, Done int64
}

// Load looks at the queue. Errors: those of Redis.
func (q *Queue) Load(ctx context.Context) (Load, error) {
	reply, err := q.run(ctx, loadScript).StringSlice()
	if err == nil && len(reply) != 5 {
		err = fmt.Errorf("%w: %d fields", ErrReply, len(reply))
	}
	if err != nil {
		return Load{}, fmt.Errorf("queue load: %w", err)
	}
	var n [5]int64
	for i, text := range reply {
		if n[i], err = strconv.ParseInt(text, 10, 64); err != nil {
			return Load{}, fmt.Errorf("queue load: %w: %w", ErrReply, err)
		}
	}
	return Load{
		Length: int(n[0]), Delayed: int(n[1]), OldestReady: time.Duration(n[2]) * time.Microsecond,
		Minute: n[3], Done: n[4],
	}, nil
}
