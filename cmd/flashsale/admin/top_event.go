package admin

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxEventLine bounds a line of the stream, in bytes.
const maxEventLine = 4 << 20

// eventReader reads server-sent events.
type eventReader struct {
	in    *bufio.Scanner
	retry time.Duration // the last retry field; 0: none
}

func newEventReader(in io.Reader) *eventReader {
	s := bufio.NewScanner(in)
	s.Buffer(nil, maxEventLine)
	return &eventReader{in: s}
}

// next returns the next event; comments, and blocks without data, have an empty name. At the end
// it returns io.EOF.
func (r *eventReader) next() (name string, data []byte, err error) {
	for r.in.Scan() {
		line := r.in.Text()
		if line == "" {
			if data == nil {
				name = ""
			}
			return name, data, nil
		}
		field, value, _ := strings.Cut(line, ":") // comments have an empty field
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			name = value
		case "data":
			data = append(data, value...)
		case "retry":
			if ms, err := strconv.Atoi(value); err == nil && ms > 0 {
				r.retry = min(time.Duration(ms)*time.Millisecond, topRetryMax)
			}
		}
	}
	if err := r.in.Err(); err != nil {
		return "", nil, err
	}
	return "", nil, io.EOF
}

// topEvent is an event of GET /v1/admin/events. Unknown values are nil.
type topEvent struct {
	raw []byte

	At       time.Time
	Complete bool
	topFlow
	RefusedByCode map[string]float64 `json:"refused_by_code_per_second"`
	Totals        struct{ Accepted, Committed, Refused int64 }
	Queue         *topQueue
	Expiries      *topQueue
	Workers       *struct {
		Live    int
		Trouble string
	}
	Latency map[string]struct {
		PerSecond *float64 `json:"per_second"`
		P50       *float64 `json:"p50_ms"`
		P90       *float64 `json:"p90_ms"`
		P99       *float64 `json:"p99_ms"`
		Max       *float64 `json:"max_ms"`
	}
	Locks struct {
		Held      *int64
		Waiting   *int64
		Handovers *float64 `json:"handovers_per_second"`
	}
	Breakers struct {
		Open    *int64
		Refused *float64 `json:"refused_per_second"`
	}
	ItemsActive *int64 `json:"items_active"`
	Items       []topItem
	Processes   []topProcess
}

// topFlow are orders per second.
type topFlow struct {
	Accepted  *float64 `json:"accepted_per_second"`
	Committed *float64 `json:"committed_per_second"`
	Refused   *float64 `json:"refused_per_second"`
}

type topQueue struct {
	Orders, Ready, Delayed, Leased, Dead int64
	OldestAge                            float64 `json:"oldest_age_ms"`
	Paused                               bool
}

type topItem struct {
	ID        string
	State     *string
	Left      *int64   `json:"stock_left"`
	Total     *int64   `json:"stock_total"`
	PerSecond *float64 `json:"accepted_per_second"`
	Lock      *struct {
		Holder  *string
		Waiting int64
	}
}

type topProcess struct {
	ID, Kind, Host, Version string
	StartedAt               time.Time `json:"started_at"`
	SeenAt                  time.Time `json:"seen_at"`
	topFlow
	AcceptedShare  *float64 `json:"accepted_share"`
	CommittedShare *float64 `json:"committed_share"`
	LocksHeld      *int64   `json:"locks_held"`
	Handovers      *float64 `json:"handovers_per_second"`
	BreakersOpen   *int64   `json:"breakers_open"`
}

func parseTopEvent(data []byte) (*topEvent, error) {
	e := &topEvent{raw: slices.Clone(data)}
	if err := json.Unmarshal(data, e); err != nil {
		return nil, fmt.Errorf("read event: %w", err)
	}
	return e, nil
}

// byRate returns the codes of refusals, the most frequent first.
func (e *topEvent) byRate() []string {
	codes := make([]string, 0, len(e.RefusedByCode))
	for code, rate := range e.RefusedByCode {
		if rate > 0 {
			codes = append(codes, code)
		}
	}
	slices.SortFunc(codes, func(a, b string) int {
		if ra, rb := e.RefusedByCode[a], e.RefusedByCode[b]; ra != rb {
			if ra > rb {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	return codes
}

// unknown stands for what is not known.
const unknown = "-"

// perSecond is a rate for people: whole from 10 on.
func perSecond(v *float64) string {
	switch {
	case v == nil:
		return unknown
	case *v == 0:
		return "0"
	case *v < 10:
		return strconv.FormatFloat(*v, 'f', 1, 64)
	default:
		return thousands(int64(*v + 0.5))
	}
}

// number is a count for people.
func number(v *int64) string {
	if v == nil {
		return unknown
	}
	return thousands(*v)
}

// thousands writes a number with separators.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// latency is a time in milliseconds for people.
func latency(ms *float64) string {
	if ms == nil {
		return unknown
	}
	return span(time.Duration(*ms * float64(time.Millisecond)))
}

// span is a duration for people, of three digits.
func span(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d m %02d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %02d m", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	}
}

// percent is a share for people.
func percent(v *float64) string {
	if v == nil {
		return unknown
	}
	return strconv.FormatFloat(*v*100, 'f', 0, 64) + " %"
}

// plainLine is an event as one line of fields.
func plainLine(e *topEvent) string {
	var b strings.Builder
	field := func(name, value string) { fmt.Fprintf(&b, " %s=%s", name, value) }
	raw := func(v *float64) string {
		if v == nil {
			return unknown
		}
		return strconv.FormatFloat(*v, 'f', -1, 64)
	}
	count := func(v *int64) string {
		if v == nil {
			return unknown
		}
		return strconv.FormatInt(*v, 10)
	}
	b.WriteString(e.At.Format("2006-01-02T15:04:05.000Z07:00"))
	field("accepted_per_second", raw(e.Accepted))
	field("committed_per_second", raw(e.Committed))
	field("refused_per_second", raw(e.Refused))
	for _, code := range e.byRate() {
		rate := e.RefusedByCode[code]
		field("refused_"+code, raw(&rate))
	}
	if q := e.Queue; q != nil {
		field("queue_orders", count(&q.Orders))
		field("dead", count(&q.Dead))
		field("oldest_age_ms", raw(&q.OldestAge))
	} else {
		field("queue_orders", unknown)
	}
	for _, status := range []string{"201", "202"} {
		l := e.Latency[status]
		field("p50_"+status+"_ms", raw(l.P50))
		field("p99_"+status+"_ms", raw(l.P99))
	}
	field("locks_held", count(e.Locks.Held))
	field("handovers_per_second", raw(e.Locks.Handovers))
	field("breakers_open", count(e.Breakers.Open))
	field("processes", strconv.Itoa(len(e.Processes)))
	field("complete", strconv.FormatBool(e.Complete))
	return b.String()
}
