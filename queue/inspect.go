package queue

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// stateKeys are the numbers of the keys of the states; see newKeys.
var stateKeys = map[State]int{StateReady: 1, StateDelayed: 2, StateLeased: 3, StateDead: 10}

// Query selects the tasks of a page of [Queue.List]: those with some ids, those of one
// state, or, with neither, all tasks.
type Query struct {
	// IDs selects tasks by their ids. They are all on one page, in this order; an id that is
	// not in the queue has a TaskInfo with an empty State. Only Fields may be set too.
	IDs []string
	// State selects the tasks of one state: ready and delayed tasks in the order in which
	// they will run, leased tasks by the end of the lease, dead letters by the time of death.
	//
	// Without State and IDs, tasks that have a payload are listed in no order, whatever state
	// they are in or change to; with a Limit of 0, none. A task that is in the queue from the
	// first page to the last is on at least one of them. Limit is then only a hint: a small
	// queue is on one page, and so is any queue of an embedded engine; empty pages may precede
	// others. A task that is removed while its page is read may have an empty State.
	State State
	// Limit is the maximum number of tasks of a page, 0 to 512. A page of a state is shorter
	// if its payloads exceed 4 MiB, and has at least one task.
	Limit int
	// After continues behind a page: its Next. The zero value is the start.
	After Place
	// Reverse lists the last tasks of a state first.
	Reverse bool
	// DiedBy leaves out dead letters that died later, to the millisecond. Zero: none.
	DiedBy time.Time
	// Fields is how much of each task is read.
	Fields Fields
}

// Fields is how much of each task a Query reads.
type Fields uint8

const (
	// AllFields reads all of a task.
	AllFields Fields = iota
	// BriefFields leaves out the payload, and all of a reason after its first [BriefReason]
	// bytes.
	BriefFields
	// PayloadField reads the ID and the payload. Other fields may be empty. By ids it costs
	// Redis a tenth of AllFields.
	PayloadField
)

// BriefReason is how many bytes of a reason a task has at most with [BriefFields].
const BriefReason = 512

// Place is where a page ends: Page.Next, or the Place of a dead letter. Dead letters that
// are removed between pages do not shift the pages that follow, even if the letter at the
// place is one of them. Other tasks that enter or leave a state between pages shift them.
type Place struct {
	// At and ID are those of a dead letter. Letters are ordered by time of death, then by id.
	At time.Time
	ID string

	number uint64 // how many tasks of another state precede, or the cursor over all tasks
}

// Place is the place of a dead letter.
func (t *TaskInfo) Place() Place { return Place{At: t.At, ID: t.ID} }

// Page is a part of the tasks that a Query selects.
type Page struct {
	Tasks []TaskInfo
	// Next is where the next page begins; zero if there is none.
	Next Place
	// More is how many tasks of the state follow those of this page. With a Limit of 0,
	// these are all from Query.After on. It is 0 without a State; see Next.
	More int
}

// List returns a page of tasks. The cost depends only on the page, not on how many tasks
// there are. Errors: ErrConfig for a Query with fields out of bounds or that exclude each
// other, and those of Redis.
func (q *Queue) List(ctx context.Context, s Query) (page Page, err error) {
	if err := s.validate(); err != nil {
		return Page{}, err
	}
	switch {
	case len(s.IDs) > 0:
		page.Tasks, err = q.lookUp(ctx, s.IDs, s.Fields)
	case s.State != "":
		page, err = q.pageOf(ctx, s)
	case s.Limit > 0:
		page, err = q.scan(ctx, s)
	}
	if err != nil {
		return Page{}, fmt.Errorf("list tasks: %w", err)
	}
	return page, nil
}

func (s *Query) validate() error {
	died := Place{At: s.After.At, ID: s.After.ID} // of a dead letter
	ofDead := died != Place{} || !s.DiedBy.IsZero()
	switch {
	case s.Limit < 0 || s.Limit > chunkTasks:
		return fmt.Errorf("list tasks: %w: Limit %d, want 0 to %d", ErrConfig, s.Limit, chunkTasks)
	case s.State != "" && stateKeys[s.State] == 0:
		return fmt.Errorf("list tasks: %w: State %q", ErrConfig, s.State)
	case ofDead && s.State != StateDead || s.Reverse && s.State == "":
		return fmt.Errorf("list tasks: %w: a place, DiedBy or Reverse that State %q does not have", ErrConfig, s.State)
	case s.Fields > PayloadField:
		return fmt.Errorf("list tasks: %w: Fields %d", ErrConfig, s.Fields)
	case s.State == StateDead && s.After.number != 0:
		return fmt.Errorf("list tasks: %w: After is a place in another state", ErrConfig)
	case len(s.IDs) > 0 && (s.State != "" || s.Limit > 0 || s.After != Place{}):
		return fmt.Errorf("list tasks: %w: IDs with State, Limit or After", ErrConfig)
	}
	return nil
}

// lookUp reads tasks by their ids, up to 512 in one step.
func (q *Queue) lookUp(ctx context.Context, ids []string, fields Fields) ([]TaskInfo, error) {
	out := make([]TaskInfo, 0, len(ids))
	for len(out) < len(ids) {
		chunk := ids[len(out):min(len(out)+chunkTasks, len(ids))]
		if fields == PayloadField {
			bodies, err := q.rdb.HMGet(ctx, q.keys.body, chunk...).Result()
			if err != nil {
				return nil, err
			}
			for i, body := range bodies {
				t := TaskInfo{ID: chunk[i]}
				if text, ok := body.(string); ok {
					t.Payload = []byte(text) // never nil
				}
				out = append(out, t)
			}
			continue
		}
		_, found, err := infos(fields, q.eval(ctx, getScript, idArgs([]any{maxFetched, fields.clip()}, chunk)...))
		if err == nil && (len(found) == 0 || len(found) > len(chunk)) {
			err = fmt.Errorf("%w: %d tasks", ErrReply, len(found))
		}
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// pageOf reads a page of a state.
func (q *Queue) pageOf(ctx context.Context, s Query) (Page, error) {
	at, reverse := int64(-1), "0"
	if s.After.ID != "" || !s.After.At.IsZero() {
		at = s.After.At.UnixMilli()
	}
	if s.Reverse {
		reverse = "1"
	}
	more, found, err := infos(s.Fields, q.eval(ctx, listScript, stateKeys[s.State], string(s.State), reverse, at, s.After.ID,
		millis(s.DiedBy), s.After.number, s.Limit, maxFetched, s.Fields.clip()))
	page := Page{Tasks: found, More: more}
	switch n := len(found); {
	case more == 0 || n == 0:
	case s.State == StateDead:
		page.Next = found[n-1].Place()
	default:
		page.Next.number = s.After.number + uint64(n)
	}
	return page, err
}

// scan reads a page of all tasks.
func (q *Queue) scan(ctx context.Context, s Query) (Page, error) {
	pairs, next, err := q.rdb.HScan(ctx, q.keys.body, s.After.number, "", int64(s.Limit)).Result()
	page := Page{Next: Place{number: next}}
	if err != nil {
		return Page{}, err
	}
	ids := make([]string, 0, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		ids = append(ids, pairs[i])
		page.Tasks = append(page.Tasks, TaskInfo{ID: pairs[i], Payload: []byte(pairs[i+1])})
	}
	if s.Fields != PayloadField {
		page.Tasks, err = q.lookUp(ctx, ids, s.Fields)
	}
	return page, err
}

// clip is an argument of get.lua and list.lua.
func (f Fields) clip() string {
	if f == BriefFields {
		return strconv.Itoa(BriefReason)
	}
	return ""
}

// infos reads the reply of get.lua or list.lua: how many tasks follow, and the tasks.
func infos(read Fields, cmd *redis.Cmd) (more int, found []TaskInfo, err error) {
	const fields = 10
	reply, err := cmd.StringSlice()
	if err == nil && len(reply)%fields != 1 {
		err = fmt.Errorf("%w: %d fields", ErrReply, len(reply))
	}
	if err != nil {
		return 0, nil, err
	}
	if more, err = strconv.Atoi(reply[0]); err != nil {
		return 0, nil, fmt.Errorf("%w: %w", ErrReply, err)
	}
	found = make([]TaskInfo, len(reply)/fields)
	for i := range found {
		if err := found[i].parse(reply[1+i*fields : 1+(i+1)*fields]); err != nil {
			return 0, nil, err
		}
		if read == BriefFields {
			found[i].Reason = strings.ToValidUTF8(found[i].Reason, "") // cut within a character
		}
	}
	return more, found, nil
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
