package figures

import (
	"encoding/json"
	"math"
	"time"
)

// event is the data of one event. A value that is not known is null, never 0.
type event struct {
	At            timestamp `json:"at"`    // by the clock of Redis
	Since         timestamp `json:"since"` // when the totals began
	WindowSeconds float64   `json:"window_seconds"`
	// Complete means that the figures include every process: all have had the time to report,
	// and none of them is late.
	Complete bool `json:"complete"`

	flow
	RefusedByCode map[string]float64 `json:"refused_by_code_per_second"`
	Totals        totals             `json:"totals"`

	Queue    *Queue                `json:"queue"`
	Expiries *Queue                `json:"expiries"`
	Workers  *Workers              `json:"workers"`
	Latency  map[string]*latencies `json:"latency"` // by status
	Locks    locks                 `json:"locks"`
	Breakers breakers              `json:"breakers"`

	ItemsActive *int      `json:"items_active"` // items with accepted orders in the window
	Items       []item    `json:"items"`
	Processes   []process `json:"processes"`
}

// flow are orders per second.
type flow struct {
	Accepted  *float64 `json:"accepted_per_second"`
	Committed *float64 `json:"committed_per_second"`
	Refused   *float64 `json:"refused_per_second"`
}

// totals are counted since event.Since.
type totals struct {
	Accepted      int64            `json:"accepted"`
	Committed     int64            `json:"committed"`
	Refused       int64            `json:"refused"`
	RefusedByCode map[string]int64 `json:"refused_by_code"`
}

// Queue is the state of the task queues of one kind, in all partitions.
type Queue struct {
	Orders      int     `json:"orders"` // in the tasks of all states
	Ready       int     `json:"ready"`
	Delayed     int     `json:"delayed"`
	Leased      int     `json:"leased"`
	Dead        int     `json:"dead"`
	OldestAgeMS float64 `json:"oldest_age_ms"`
	Paused      bool    `json:"paused"`
}

// Workers are the processes that commit orders.
type Workers struct {
	Live    int    `json:"live"`
	Trouble string `json:"trouble,omitempty"` // empty: a live worker fetches
}

// latencies are the times of answers, from the request's headers to the end of the answer. The
// percentiles are upper bounds, at most 1/16 too high; null without answers.
type latencies struct {
	PerSecond *float64 `json:"per_second"`
	P50       *float64 `json:"p50_ms"`
	P90       *float64 `json:"p90_ms"`
	P99       *float64 `json:"p99_ms"`
	Max       *float64 `json:"max_ms"`
}

// locks are the locks of the items on sale.
type locks struct {
	Held      *int     `json:"held"`
	Waiting   *int     `json:"waiting"`
	Handovers *float64 `json:"handovers_per_second"`
}

// breakers are the circuit breakers for Redis.
type breakers struct {
	Open    *int64   `json:"open"` // nodes, in the process that has most
	Refused *float64 `json:"refused_per_second"`
}

// item is the stock and the lock of one item.
type item struct {
	ID         string   `json:"id"`
	Name       *string  `json:"name"`
	State      *string  `json:"state"`
	StockLeft  *int64   `json:"stock_left"`
	StockTotal *int64   `json:"stock_total"`
	Accepted   *float64 `json:"accepted_per_second"`
	Lock       *Lock    `json:"lock"`
}

// Lock is the state of an item's lock at one moment. While several processes sell the item, each of
// them holds it only while its script runs.
type Lock struct {
	Holder  *string `json:"holder"` // nil: not held
	Fence   int64   `json:"fence"`
	Waiting int64   `json:"waiting"`
}

// process is one process and its share of the figures.
type process struct {
	ID        string    `json:"id"`
	Kind      string    `json:"kind"`
	Host      string    `json:"host"`
	Version   string    `json:"version"`
	StartedAt timestamp `json:"started_at"`
	SeenAt    timestamp `json:"seen_at"`

	flow
	AcceptedShare  *float64 `json:"accepted_share"` // of all processes, 0 to 1
	CommittedShare *float64 `json:"committed_share"`

	LocksHeld    *int     `json:"locks_held"`
	LocksWaiting *int     `json:"locks_waiting"`
	Handovers    *float64 `json:"handovers_per_second"`
	BreakersOpen *int64   `json:"breakers_open"`
}

// timestamp is a time in the API's format: RFC 3339 in UTC with milliseconds.
type timestamp time.Time

// MarshalText writes the time.
func (t timestamp) MarshalText() ([]byte, error) {
	return time.Time(t).UTC().AppendFormat(nil, "2006-01-02T15:04:05.000Z"), nil
}

// UnmarshalText reads it again.
func (t *timestamp) UnmarshalText(text []byte) error { return (*time.Time)(t).UnmarshalText(text) }

// eventHead and eventTail frame the data of an event.
const (
	eventHead = "event: figures\ndata: "
	eventTail = "\n\n"
)

// encode returns an event in the format of server-sent events. JSON has no line breaks.
func (e *event) encode() ([]byte, error) {
	b, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	return append(append([]byte(eventHead), b...), eventTail...), nil
}

// rounded returns a number with two decimals.
func rounded(v float64) *float64 {
	v = math.Round(v*100) / 100
	return &v
}

// millis returns a duration in milliseconds, with three decimals.
func millis(d time.Duration) *float64 {
	v := math.Round(float64(d)/float64(time.Microsecond)) / 1000
	return &v
}

// describe sets what the reports of the processes show. skew is the clock of Redis minus that of
// this host.
func (e *event) describe(d *deployment, now time.Time, skew time.Duration) {
	e.Totals = totals{Accepted: d.total.accepted, Committed: d.total.committed, Refused: total(d.total.refused), RefusedByCode: d.total.refused}
	if e.Totals.RefusedByCode == nil {
		e.Totals.RefusedByCode = map[string]int64{}
	}
	e.Latency = map[string]*latencies{}
	for _, status := range statusOf {
		e.Latency[status] = &latencies{}
	}
	e.Processes = []process{}
	sum := sumOf{byCode: map[string]float64{}}
	live := d.live(now)
	for _, p := range live {
		if !p.fresh(now) {
			e.Complete = false
			continue
		}
		sum.add(p)
	}
	if sum.processes > 0 {
		sum.describe(e)
		if !d.cut {
			n := len(d.rates)
			e.ItemsActive = &n
		}
	}
	for _, p := range live {
		e.Processes = append(e.Processes, p.describe(&sum, now, skew))
	}
}

// sumOf adds up the rates of processes, whose reports cover slightly different times.
type sumOf struct {
	processes                               int
	accepted, committed, handovers, blocked float64
	byCode                                  map[string]float64
	answers                                 [answerKinds]buckets
	answersPerSecond                        [answerKinds]float64
	held, waiting                           int
	open                                    int64
}

func (s *sumOf) add(p *peer) {
	s.processes++
	t, c := p.seconds(), p.change
	s.accepted += float64(c.accepted) / t
	s.committed += float64(c.committed) / t
	s.handovers += float64(c.handovers) / t
	s.blocked += float64(c.blocked) / t
	for code, n := range c.refused {
		s.byCode[code] += float64(n) / t
	}
	for kind := range c.answers {
		s.answers[kind].add(&c.answers[kind])
		s.answersPerSecond[kind] += float64(c.answers[kind].total()) / t
	}
	s.held += p.last.Held
	s.waiting += p.last.Waiting
	s.open = max(s.open, p.last.Open) // each process sees the same nodes
}

// describe sets the figures of the whole deployment.
func (s *sumOf) describe(e *event) {
	refused := 0.0
	for code, rate := range s.byCode {
		refused += rate
		s.byCode[code] = *rounded(rate)
	}
	e.flow = flow{Accepted: rounded(s.accepted), Committed: rounded(s.committed), Refused: rounded(refused)}
	e.RefusedByCode = s.byCode
	for kind, status := range statusOf {
		l, b := e.Latency[status], &s.answers[kind]
		l.PerSecond = rounded(s.answersPerSecond[kind])
		if b.total() > 0 {
			l.P50, l.P90, l.P99, l.Max = millis(b.quantile(0.5)), millis(b.quantile(0.9)), millis(b.quantile(0.99)), millis(b.quantile(1))
		}
	}
	e.Locks = locks{Held: &s.held, Waiting: &s.waiting, Handovers: rounded(s.handovers)}
	e.Breakers = breakers{Open: &s.open, Refused: rounded(s.blocked)}
}

// describe returns the figures of one process. They are null while it is late.
func (p *peer) describe(all *sumOf, now time.Time, skew time.Duration) process {
	out := process{
		ID: p.id, Kind: p.last.Kind, Host: p.last.Host, Version: p.last.Version,
		StartedAt: timestamp(p.started.Add(skew).Truncate(time.Second)), SeenAt: timestamp(p.at.Add(skew)),
	}
	if !p.fresh(now) {
		return out
	}
	t, c, r := p.seconds(), p.change, p.last
	out.flow = flow{
		Accepted: rounded(float64(c.accepted) / t), Committed: rounded(float64(c.committed) / t), Refused: rounded(float64(total(c.refused)) / t),
	}
	out.AcceptedShare, out.CommittedShare = share(float64(c.accepted)/t, all.accepted), share(float64(c.committed)/t, all.committed)
	out.LocksHeld, out.LocksWaiting, out.BreakersOpen = &r.Held, &r.Waiting, &r.Open
	out.Handovers = rounded(float64(c.handovers) / t)
	return out
}

// share returns a part of a sum; nil if the sum is 0.
func share(part, sum float64) *float64 {
	if sum <= 0 {
		return nil
	}
	v := math.Round(part/sum*1000) / 1000
	return &v
}
