package figures

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	_ "embed" // for the script

	"github.com/redis/go-redis/v9"
)

// The Redis keys of the figures. They share a hash slot.
const (
	reportsKey = "fs:{p0}:figures"
	// WatchedKey exists while a process shows the figures; see Wanted.
	WatchedKey = "fs:{p0}:figures:watched"
)

// maxProcesses bounds the processes in the figures.
const maxProcesses = 256

// report is what one process publishes: its counters since its start, and its present state.
// Its JSON is read by other versions of the program during an upgrade.
type report struct {
	Kind    string `json:"kind"`
	Host    string `json:"host"`
	Version string `json:"version"`
	// Uptime is the age of the process in milliseconds, on its monotonic clock. Rates are
	// differences of counters by differences of uptimes.
	Uptime int64 `json:"uptime_ms"`

	Accepted  int64            `json:"accepted"`
	Committed int64            `json:"committed"`
	Refused   map[string]int64 `json:"refused,omitempty"`
	Handovers int64            `json:"handovers"`
	Blocked   int64            `json:"blocked"` // calls that a breaker refused
	// Answers are the histograms of answers by status, as pairs of bucket and count.
	Answers map[string][]int64 `json:"answers,omitempty"`

	Held    int   `json:"held"`    // locks
	Waiting int   `json:"waiting"` // for locks
	Open    int64 `json:"open"`    // breakers

	// Items are the orders accepted by item since the report that was sent before, of the busiest items;
	// ItemsCut means that there were more.
	Items    map[string]int64 `json:"items,omitempty"`
	ItemsCut bool             `json:"items_cut,omitempty"`
}

// State is the part of a process's report that is read when the report is sent.
type State struct {
	LocksHeld    int
	LocksWaiting int   // acquires that wait for a lock
	BreakersOpen int64 // nodes of Redis
	CallsBlocked int64 // by open breakers, since the start of the process
}

// report returns the present counters.
func (c *Counters) report(p *Process, uptime time.Duration) *report {
	s := p.State()
	r := &report{
		Kind: p.Kind, Host: p.Host, Version: p.Version, Uptime: uptime.Milliseconds(),
		Accepted: c.accepted.Load(), Committed: c.committed.Load(), Handovers: c.handovers.Load(),
		Refused: make(map[string]int64), Answers: make(map[string][]int64, answerKinds),
		Held: s.LocksHeld, Waiting: s.LocksWaiting, Open: s.BreakersOpen, Blocked: s.CallsBlocked,
	}
	for code, n := range c.refused {
		if n := n.Load(); n > 0 {
			r.Refused[code] = n
		}
	}
	for kind, status := range statusOf {
		b := c.answers[kind].read()
		r.Answers[status] = b.sparse()
	}
	r.Items, r.ItemsCut = c.takeItems()
	return r
}

// withUnsent returns the report with the items of an earlier one that was not sent, nil if there
// is none.
func (r *report) withUnsent(earlier *report) *report {
	if earlier == nil {
		return r
	}
	all := make(map[string]int64, len(r.Items)+len(earlier.Items))
	maps.Copy(all, r.Items)
	for id, n := range earlier.Items {
		all[id] += n
	}
	sum, cut := *r, false
	sum.Items, cut = cutItems(all)
	sum.ItemsCut = cut || r.ItemsCut || earlier.ItemsCut
	return &sum
}

//go:embed lua/exchange.lua
var exchangeLua string

var exchangeScript = redis.NewScript(exchangeLua)

// Times of the exchange.
const (
	// keysLife is how long the keys outlive the last publication, and the last watcher.
	keysLife = 5 * time.Second
	// goneAfter is the silence after which a process counts as ended.
	goneAfter = 6 * time.Second
)

// exchange publishes a report and returns those of all processes, if this process shows them.
// A nil report removes the own entry.
func (f *Figures) exchange(ctx context.Context, r *report, show bool) (reports []stamped, now time.Time, watched bool, err error) {
	text := []byte{}
	if r != nil {
		if text, err = json.Marshal(r); err != nil {
			return nil, now, false, err
		}
	}
	shows := "0"
	if show {
		shows = "1"
	}
	reply, err := exchangeScript.Run(ctx, f.cfg.Redis, []string{reportsKey, WatchedKey},
		f.id, text, shows, keysLife.Milliseconds(), goneAfter.Milliseconds(), maxProcesses).Slice()
	if err != nil {
		return nil, now, false, fmt.Errorf("exchange figures: %w", err)
	}
	return parseExchange(reply)
}

var errReply = errors.New("figures: unexpected reply of the exchange script")

// stamped is a report and when Redis received it.
type stamped struct {
	id string
	at time.Time // by the clock of Redis
	report
}

// parseExchange reads the script's reply. It skips reports that it cannot read.
func parseExchange(reply []any) (reports []stamped, now time.Time, watched bool, err error) {
	if len(reply) < 2 || len(reply)%2 != 0 {
		return nil, now, false, fmt.Errorf("%w: %d values", errReply, len(reply))
	}
	ms, ok1 := reply[0].(int64)
	n, ok2 := reply[1].(int64)
	if !ok1 || !ok2 {
		return nil, now, false, fmt.Errorf("%w: %T, %T", errReply, reply[0], reply[1])
	}
	for rest := reply[2:]; len(rest) > 0; rest = rest[2:] {
		id, ok1 := rest[0].(string)
		text, ok2 := rest[1].(string)
		if !ok1 || !ok2 {
			return nil, now, false, fmt.Errorf("%w: %T, %T", errReply, rest[0], rest[1])
		}
		stamp, body, _ := strings.Cut(text, " ")
		at, err := strconv.ParseInt(stamp, 10, 64)
		s := stamped{id: id, at: time.UnixMilli(at).UTC()}
		if err != nil || json.Unmarshal([]byte(body), &s.report) != nil {
			continue
		}
		reports = append(reports, s)
	}
	return reports, time.UnixMilli(ms).UTC(), n == 1, nil
}
