package queue

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// DeadPlace is a position in the dead letters of a queue, which are ordered by time of
// death and then by id. The zero value is before all of them.
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

// DeadAfter lists up to limit (1 to 512) dead letters after a place that died no later
// than by, earliest first. The place for the next page is At and ID of the last one
// listed. Letters removed between pages do not shift the list, even if the letter at the
// place is one of them. The cost depends only on the page, not on the number of dead
// letters. Errors: ErrConfig for values out of bounds, and those of Redis.
func (q *Queue) DeadAfter(ctx context.Context, place DeadPlace, by time.Time, limit int) ([]TaskInfo, error) {
	if limit < 1 || limit > chunkTasks {
		return nil, fmt.Errorf("list dead tasks: %w: limit %d, want 1 to %d", ErrConfig, limit, chunkTasks)
	}
	at, id := place.args()
	reply, err := q.run(ctx, deadScript, at, id, by.UnixMilli(), limit).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("list dead tasks: %w", err)
	}
	return parseInfos(StateDead, reply)
}

// DeadNote describes a dead letter without its payload.
type DeadNote struct {
	ID      string
	At      time.Time // of death, to the millisecond
	Attempt int
	// Reason is the start of the reason, up to [NoteReason] bytes.
	Reason string
	Options
}

// Place is the letter's place.
func (n *DeadNote) Place() DeadPlace { return DeadPlace{At: n.At, ID: n.ID} }

// NoteReason is how many bytes of a reason a [DeadNote] has at most.
const NoteReason = 512

// NotesAfter lists up to limit (1 to 512) dead letters after a place, earliest first, without
// their payloads. The place for the next page is that of the last one listed; letters that
// are removed between pages do not shift the list. Errors: ErrConfig for values out of
// bounds, and those of Redis.
func (q *Queue) NotesAfter(ctx context.Context, place DeadPlace, limit int) ([]DeadNote, error) {
	return q.notes(ctx, "up", place, 0, limit)
}

// NotesBefore is NotesAfter in the other direction: it lists letters before a place, latest
// first, after skipping some. The zero place is after all letters here.
func (q *Queue) NotesBefore(ctx context.Context, place DeadPlace, skip, limit int) ([]DeadNote, error) {
	return q.notes(ctx, "down", place, skip, limit)
}

func (q *Queue) notes(ctx context.Context, direction string, place DeadPlace, skip, limit int) ([]DeadNote, error) {
	if skip < 0 || limit < 1 || limit > chunkTasks {
		return nil, fmt.Errorf("list dead tasks: %w: skip %d, limit %d, want at least 0, and 1 to %d", ErrConfig, skip, limit, chunkTasks)
	}
	at, id := place.args()
	reply, err := q.run(ctx, deadNotesScript, direction, at, id, skip, limit, NoteReason).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("list dead tasks: %w", err)
	}
	const fields = 5
	if len(reply)%fields != 0 {
		return nil, fmt.Errorf("list dead tasks: %w: %d fields", ErrReply, len(reply))
	}
	out := make([]DeadNote, len(reply)/fields)
	for i := range out {
		if err := out[i].parse(reply[i*fields : (i+1)*fields]); err != nil {
			return nil, fmt.Errorf("list dead tasks: %w", err)
		}
	}
	return out, nil
}

// parse reads the fields id, time of death, attempt, reason and options.
func (n *DeadNote) parse(fields []string) (err error) {
	at, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrReply, err)
	}
	n.ID, n.At, n.Reason = fields[0], time.UnixMilli(at).UTC(), strings.ToValidUTF8(fields[3], "")
	if n.Attempt, err = strconv.Atoi(fields[2]); err != nil {
		return fmt.Errorf("%w: %w", ErrReply, err)
	}
	n.Options, err = parseOptions(fields[4])
	return err
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
	n, err := q.run(ctx, deadCountScript, at, id, by.UnixMilli()).Int64Slice()
	if err == nil && len(n) != 3 {
		err = fmt.Errorf("%w: %d fields", ErrReply, len(n))
	}
	if err != nil {
		return DeadCount{}, fmt.Errorf("count dead tasks: %w", err)
	}
	return DeadCount{After: int(n[0]), Total: int(n[1]), Now: time.UnixMilli(n[2]).UTC()}, nil
}
