//go:build chaos && unix

package chaos

import (
	"math"
	"slices"
	"time"

	"flashsale/internal/verify/history"
)

// span is a part of a run whose purchases are measured: those that began in it, no matter when
// they ended.
type span struct {
	name     string
	from, to int64
	took     []time.Duration
	accepted int // orders made, not repeats
	definite int
	unknown  int // no answer at all
	refused  int // 503
	blunt    int // 503 or 429 without a Retry-After
	others   map[int]int
	// each is called for every order created, with the run's mutex held; it may be nil.
	each func(h *history.Call)
	// outages measures how long errors last; it may be nil.
	outages *outages
}

// measure begins a span.
func (r *run) measure(name string) *span {
	s := &span{name: name, from: r.now(), to: math.MaxInt64, others: make(map[int]int)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spans = append(r.spans, s)
	return s
}

// end ends a span: purchases that begin from now on are not part of it.
func (r *run) end(s *span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.to = r.now()
}

func (s *span) saw(h *history.Call) {
	if h.Op != history.Buy || h.Start < s.from || h.Start >= s.to {
		return
	}
	s.took = append(s.took, time.Duration(h.End-h.Start))
	if s.outages != nil {
		s.outages.saw(h)
	}
	switch {
	case h.Accepted() && !h.Replayed:
		s.accepted++
		s.definite++
		if s.each != nil {
			s.each(h)
		}
	case definite(h):
		s.definite++
	case h.Status == 0:
		s.unknown++
	case h.Status == 503:
		s.refused++
	default:
		s.others[h.Status]++
	}
	if (h.Status == 503 || h.Status == 429) && h.RetryAfter < 1 {
		s.blunt++
	}
}

// quantile is the time within which a share of the purchases was answered; 0 if there were
// none.
func (s *span) quantile(share float64) time.Duration {
	if len(s.took) == 0 {
		return 0
	}
	slices.Sort(s.took)
	return s.took[min(int(share*float64(len(s.took))), len(s.took)-1)]
}

// report notes the results of a completed span.
func (r *run) report(s *span) {
	ms := func(d time.Duration) int64 { return d.Milliseconds() }
	r.notef("%s: %d calls, %d accepted, %d 503, %d unanswered, p50 %d ms, p99 %d ms, longest %d ms", s.name,
		len(s.took), s.accepted, s.refused, s.unknown, ms(s.quantile(0.5)), ms(s.quantile(0.99)), ms(s.quantile(1)))
}

// politely fails the run if a refusal had no Retry-After.
func (r *run) politely(s *span) {
	if s.blunt > 0 {
		r.failf("%s: %d answers 503 or 429 without Retry-After", s.name, s.blunt)
	}
}
