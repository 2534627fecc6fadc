package queue

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Get returns tasks by their ids, up to 512 in one step and in the order of the ids.
// The State is empty for an unknown id. A task that a fault has left in no state
// still has a Payload, see [Queue.Verify]. Errors: those of Redis.
func (q *Queue) Get(ctx context.Context, ids ...string) ([]TaskInfo, error) {
	out := make([]TaskInfo, 0, len(ids))
	for chunk := range slices.Chunk(ids, chunkTasks) {
		args := make([]any, len(chunk))
		for i, id := range chunk {
			args[i] = id
		}
		reply, err := q.run(ctx, getScript, args...).StringSlice()
		for i := 0; err == nil && i < len(chunk); i++ {
			var info TaskInfo
			info, reply, err = parseFound(chunk[i], reply)
			out = append(out, info)
		}
		if err == nil && len(reply) > 0 {
			err = fmt.Errorf("%w: %d fields too many", ErrReply, len(reply))
		}
		if err != nil {
			return nil, fmt.Errorf("get %d tasks: %w", len(chunk), err)
		}
	}
	return out, nil
}

// Payloads returns the payloads of tasks in any state, in the order of the ids; nil for
// an unknown id. It costs Redis a tenth of [Queue.Get]. Errors: those of Redis.
func (q *Queue) Payloads(ctx context.Context, ids ...string) ([][]byte, error) {
	out := make([][]byte, 0, len(ids))
	for chunk := range slices.Chunk(ids, chunkTasks) {
		bodies, err := q.rdb.HMGet(ctx, q.keys.body, chunk...).Result()
		if err != nil {
			return nil, fmt.Errorf("read payloads of %d tasks: %w", len(chunk), err)
		}
		for _, body := range bodies {
			if text, ok := body.(string); ok {
				out = append(out, []byte(text)) // never nil
			} else {
				out = append(out, nil)
			}
		}
	}
	return out, nil
}

// stateKeys are the numbers of the keys of the states; see newKeys.
var stateKeys = map[State]int{StateReady: 1, StateDelayed: 2, StateLeased: 3, StateDead: 10}

// List returns up to limit (1 to 512) tasks of a state after skipping offset: ready
// and delayed tasks in the order in which they will run, leased tasks by the end of
// the lease, dead letters latest first. Tasks that enter or leave the state between
// calls shift the offsets. Errors: ErrConfig for values out of bounds, and those of
// Redis.
func (q *Queue) List(ctx context.Context, state State, offset, limit int) ([]TaskInfo, error) {
	key, known := stateKeys[state]
	if !known || offset < 0 || limit < 1 || limit > chunkTasks {
		return nil, fmt.Errorf("list %s tasks: %w: offset %d, limit %d, want a state, at least 0, and 1 to %d",
			state, ErrConfig, offset, limit, chunkTasks)
	}
	reply, err := q.run(ctx, listScript, key, offset, limit).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("list %s tasks: %w", state, err)
	}
	return parseInfos(state, reply)
}

// parseInfos reads the reply of list.lua.
func parseInfos(state State, reply []string) ([]TaskInfo, error) {
	const fields = 1 + infoFields
	if len(reply)%fields != 0 {
		return nil, fmt.Errorf("list %s tasks: %w: %d fields", state, ErrReply, len(reply))
	}
	out := make([]TaskInfo, 0, len(reply)/fields)
	for ; len(reply) > 0; reply = reply[fields:] {
		info, err := parseInfo(reply[0], state, reply[1:fields])
		if err != nil {
			return nil, fmt.Errorf("list %s tasks: %w", state, err)
		}
		out = append(out, info)
	}
	return out, nil
}

// parseFound reads one task from the reply of get.lua and returns the rest of the reply.
func parseFound(id string, reply []string) (TaskInfo, []string, error) {
	const unknown, known = 3, 1 + infoFields
	switch {
	case len(reply) >= unknown && reply[0] == "":
		return TaskInfo{ID: id, Payload: body(reply[1], reply[2])}, reply[unknown:], nil
	case len(reply) >= known && reply[0] != "":
		info, err := parseInfo(id, State(reply[0]), reply[1:known])
		return info, reply[known:], err
	default:
		return TaskInfo{}, nil, fmt.Errorf("%w: %d fields", ErrReply, len(reply))
	}
}

// infoFields is the number of fields per task in the replies of get.lua and list.lua.
const infoFields = 8

// parseInfo reads the fields score, attempt, priority, tag, text, presence of the payload,
// payload and options.
func parseInfo(id string, state State, reply []string) (TaskInfo, error) {
	var n [3]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(reply[i], 10, 64); err != nil {
			return TaskInfo{}, fmt.Errorf("%w: %w", ErrReply, err)
		}
	}
	info := TaskInfo{
		ID: id, State: state, Attempt: int(n[1]), Priority: int(n[2]),
		Payload: body(reply[5], reply[6]),
	}
	var err error
	if info.Options, err = parseOptions(reply[7]); err != nil {
		return TaskInfo{}, err
	}
	if state == StateReady {
		info.At = time.UnixMicro(n[0]).Add(time.Duration(info.Priority) * ageing).UTC()
	} else {
		info.At = time.UnixMilli(n[0]).UTC()
	}
	if reply[3] != "L" {
		info.Reason = reply[4]
	}
	return info, nil
}

// ageing is the waiting time that one level of priority counts for; queue_age_us in the
// scripts.
const ageing = time.Minute

// scanPage is how many payloads one step of a scan reads, about a megabyte of large ones.
const scanPage = 128

// Scan calls fn for every task with a payload, in any state, dead letters included.
// It may miss tasks that are added or removed during the scan, and may visit a task
// twice. It stops at the first error of fn. Errors: fn's, and those of Redis.
func (q *Queue) Scan(ctx context.Context, fn func(id string, payload []byte) error) error {
	var cursor uint64
	for {
		pairs, next, err := q.rdb.HScan(ctx, q.keys.body, cursor, "", scanPage).Result()
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

// body reads a payload from a script's reply: present is "1" if it exists.
func body(present, payload string) []byte {
	if present != "1" {
		return nil
	}
	return []byte(payload)
}

// Stats returns the number of tasks per state and the counters. Errors: those of Redis.
func (q *Queue) Stats(ctx context.Context) (Stats, error) {
	reply, err := q.run(ctx, statsScript).StringSlice()
	if err != nil {
		return Stats{}, fmt.Errorf("queue stats: %w", err)
	}
	s, err := parseStats(reply)
	if err != nil {
		return Stats{}, fmt.Errorf("queue stats: %w", err)
	}
	return s, nil
}

// Load returns the current load of the queue. Errors: those of Redis.
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
		Length: int(n[0]), Active: int(n[1]), OldestReady: time.Duration(n[2]) * time.Microsecond,
		Minute: n[3], Done: n[4],
	}, nil
}
