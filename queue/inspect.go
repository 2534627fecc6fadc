package queue

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// Get returns one task as it stands. Errors: ErrTaskNotFound, and those of Redis.
func (q *Queue) Get(ctx context.Context, id string) (TaskInfo, error) {
	reply, err := q.run(ctx, getScript, id).StringSlice()
	if err != nil {
		return TaskInfo{}, fmt.Errorf("get task %s: %w", id, err)
	}
	if len(reply) == 0 {
		return TaskInfo{}, fmt.Errorf("get task %s: %w", id, ErrTaskNotFound)
	}
	if len(reply) != 8 {
		return TaskInfo{}, fmt.Errorf("get task %s: %w: %d fields", id, ErrReply, len(reply))
	}
	var n [3]int64
	for i := range n {
		if n[i], err = strconv.ParseInt(reply[i+1], 10, 64); err != nil {
			return TaskInfo{}, fmt.Errorf("get task %s: %w: %w", id, ErrReply, err)
		}
	}
	info := TaskInfo{
		ID: id, State: State(reply[0]), Attempt: int(n[1]), Priority: int(n[2]),
		Payload: body(reply[6], reply[7]),
	}
	if info.State == StateReady {
		info.At = time.UnixMicro(n[0]).Add(time.Duration(info.Priority) * ageing).UTC()
	} else {
		info.At = time.UnixMilli(n[0]).UTC()
	}
	if reply[4] != "L" {
		info.Reason = reply[5]
	}
	return info, nil
}

// ageing is what one level of priority is worth; queue_age_us in the scripts.
const ageing = time.Minute

// Stats counts the tasks per state. Errors: those of Redis.
func (q *Queue) Stats(ctx context.Context) (Stats, error) {
	reply, err := q.run(ctx, statsScript).Int64Slice()
	if err != nil {
		return Stats{}, fmt.Errorf("queue stats: %w", err)
	}
	if len(reply) != 5 {
		return Stats{}, fmt.Errorf("queue stats: %w: %d fields", ErrReply, len(reply))
	}
	return Stats{
		Ready: int(reply[0]), Delayed: int(reply[1]), Leased: int(reply[2]), Dead: int(reply[3]),
		OldestReady: time.Duration(reply[4]) * time.Microsecond,
	}, nil
}

// Scan calls fn for every task that has a body, in any state, dead letters
// included. Tasks that come or go meanwhile may be missed, and one may be seen
// twice. It ends with the first error of fn. Errors: fn's, and those of Redis.
func (q *Queue) Scan(ctx context.Context, fn func(id string, payload []byte) error) error {
	var cursor uint64
	for {
		pairs, next, err := q.rdb.HScan(ctx, q.keys.body, cursor, "", chunkTasks).Result()
		if err != nil {
			return fmt.Errorf("scan queue: %w", err)
		}
		for i := 0; i+1 < len(pairs); i += 2 {
			if err := fn(pairs[i], []byte(pairs[i+1])); err != nil {
				return fmt.Errorf("scan queue: task %s: %w", pairs[i], err)
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// body is a payload as the scripts return it: present says whether it exists.
func body(present, payload string) []byte {
	if present != "1" {
		return nil
	}
	return []byte(payload)
}
