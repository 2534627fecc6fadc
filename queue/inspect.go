package queue

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Get returns tasks by their ids, up to 512 in one step and in the order of the ids.
// The State is empty for an unknown id. A task that a fault has left in no state
// still has a Payload, see [Queue.Verify]. Errors: those of Redis.
func (q *Queue) Get(ctx context.Context, ids ...string) ([]TaskInfo, error) {
	out := make([]TaskInfo, 0, len(ids))
	for chunk := range slices.Chunk(ids, chunkTasks) {
		found, err := infos(q.run(ctx, getScript, idArgs(nil, chunk)...))
		if err == nil && len(found) != len(chunk) {
			err = fmt.Errorf("%w: %d tasks", ErrReply, len(found))
		}
		if err != nil {
			return nil, fmt.Errorf("get %d tasks: %w", len(chunk), err)
		}
		out = append(out, found...)
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

// Page selects tasks of one state for [Queue.List].
type Page struct {
	// Limit is the maximum number of tasks, 1 to 512. Required.
	Limit int
	// Skip is how many tasks of the state, or behind After, are left out. Tasks that enter
	// or leave the state between calls shift the pages.
	Skip int
	// Reverse lists the last tasks first.
	Reverse bool
	// Brief leaves out the payloads, and all of a reason after its first [BriefReason]
	// bytes.
	Brief bool
	// After continues a list of dead letters behind this place, in the direction of the
	// list. Letters that are removed between pages do not shift such pages, even if the
	// letter at the place is one of them. The zero value is the start of the list.
	After DeadPlace
	// DiedBy leaves out letters that died later, to the millisecond. Zero: none.
	DiedBy time.Time
}

// DeadPlace is a position in the dead letters of a queue, which are ordered by time of
// death and then by id.
type DeadPlace struct {
	At time.Time
	ID string
}

// args are the arguments that name the place in a script.
func (p DeadPlace) args() (at int64, id string) {
	if p == (DeadPlace{}) {
		return -1, ""
	}
	return p.At.UnixMilli(), p.ID
}

// Place is the place of a dead letter.
func (t *TaskInfo) Place() DeadPlace { return DeadPlace{At: t.At, ID: t.ID} }

// BriefReason is how many bytes of a reason a task of a brief [Page] has at most.
const BriefReason = 512

// List returns a page of the tasks of a state: ready and delayed tasks in the order in
// which they will run, leased tasks by the end of the lease, dead letters by the time of
// death. The cost depends only on the page. Errors: ErrConfig for a page out of bounds or
// an unknown state, and those of Redis.
func (q *Queue) List(ctx context.Context, state State, p Page) ([]TaskInfo, error) {
	key, known := stateKeys[state]
	ofDead := p.After != DeadPlace{} || !p.DiedBy.IsZero()
	if !known || p.Skip < 0 || p.Limit < 1 || p.Limit > chunkTasks || ofDead && state != StateDead {
		return nil, fmt.Errorf("list %q tasks: %w: skip %d, limit %d, want a state, at least 0, and 1 to %d; After and DiedBy are for dead ones",
			state, ErrConfig, p.Skip, p.Limit, chunkTasks)
	}
	at, id := p.After.args()
	reverse, by, clip := "0", "", ""
	if p.Reverse {
		reverse = "1"
	}
	if !p.DiedBy.IsZero() {
		by = strconv.FormatInt(p.DiedBy.UnixMilli(), 10)
	}
	if p.Brief {
		clip = strconv.Itoa(BriefReason)
	}
	found, err := infos(q.run(ctx, listScript, key, string(state), reverse, at, id, by, p.Skip, p.Limit, clip))
	if err != nil {
		return nil, fmt.Errorf("list %s tasks: %w", state, err)
	}
	if p.Brief {
		for i := range found {
			found[i].Reason = strings.ToValidUTF8(found[i].Reason, "") // cut within a character
		}
	}
	return found, nil
}

// DeadCount is how many dead letters a queue has.
type DeadCount struct {
	After int       // those after the place that died no later than the given time
	Total int       // all
	Now   time.Time // when they were counted, by the clock of Redis and to the millisecond
}

// CountDead counts the dead letters of the queue, and those after a place that died no later
// than by. The cost does not depend on their number. Errors: those of Redis.
func (q *Queue) CountDead(ctx context.Context, place DeadPlace, by time.Time) (DeadCount, error) {
	at, id := place.args()
	n, err := numbers(q.run(ctx, deadCountScript, at, id, by.UnixMilli()), 3)
	if err != nil {
		return DeadCount{}, fmt.Errorf("count dead tasks: %w", err)
	}
	return DeadCount{After: int(n[0]), Total: int(n[1]), Now: time.UnixMilli(n[2]).UTC()}, nil
}

// infos reads the reply of get.lua or list.lua.
func infos(cmd *redis.Cmd) ([]TaskInfo, error) {
	const fields = 10
	reply, err := cmd.StringSlice()
	if err == nil && len(reply)%fields != 0 {
		err = fmt.Errorf("%w: %d fields", ErrReply, len(reply))
	}
	if err != nil {
		return nil, err
	}
	out := make([]TaskInfo, len(reply)/fields)
	for i := range out {
		if err := out[i].parse(reply[i*fields : (i+1)*fields]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// parse reads the fields state, id, score, attempt, priority, tag, text, options, presence
// of the payload, payload.
func (t *TaskInfo) parse(fields []string) (err error) {
	var n [3]int64
	for i := range n {
		if n[i], err = strconv.ParseInt(fields[2+i], 10, 64); err != nil {
			return fmt.Errorf("%w: %w", ErrReply, err)
		}
	}
	t.State, t.ID, t.Attempt, t.Priority = State(fields[0]), fields[1], int(n[1]), int(n[2])
	switch t.State {
	case "":
	case StateReady:
		t.At = time.UnixMicro(n[0]).Add(time.Duration(t.Priority) * ageing).UTC()
	default:
		t.At = time.UnixMilli(n[0]).UTC()
	}
	if fields[5] != "L" {
		t.Reason = fields[6]
	}
	if fields[8] == "1" {
		t.Payload = []byte(fields[9])
	}
	t.Options, err = parseOptions(fields[7])
	return err
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
	n, err := numbers(q.run(ctx, loadScript), 5)
	if err != nil {
		return Load{}, fmt.Errorf("queue load: %w", err)
	}
	return Load{
		Length: int(n[0]), Active: int(n[1]), OldestReady: time.Duration(n[2]) * time.Microsecond,
		Minute: n[3], Done: n[4],
	}, nil
}
