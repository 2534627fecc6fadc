//go:build chaos && unix

package chaos

import (
	"testing"

	"flashsale/internal/verify/history"
)

// A healthy purchase without a definite answer fails F17, except 503 after a loss of Redis.
func TestJudge_SlowClients(t *testing.T) {
	for name, c := range map[string]struct {
		answer      history.Call
		fails, lost bool // whether the run fails without and with a loss of Redis
	}{
		"accepted":    {history.Call{Status: 201}, false, false},
		"sold out":    {history.Call{Status: 409, Code: "sold_out"}, false, false},
		"unavailable": {history.Call{Status: 503, Code: "unavailable"}, true, false},
		"overloaded":  {history.Call{Status: 503, Code: "overloaded"}, true, false},
		"unanswered":  {history.Call{Err: "connection reset"}, true, true},
		"too late":    {history.Call{Status: 408, Code: "request_timeout"}, true, true},
	} {
		for lost, want := range map[bool]bool{false: c.fails, true: c.lost} {
			r := &run{t: t}
			s := &span{to: 10, others: make(map[int]int)}
			for _, answer := range []history.Call{{Status: 201}, c.answer} {
				answer.Op, answer.Start, answer.End = history.Buy, 1, 2
				s.saw(&answer)
			}
			r.blame(s, lost)
			if got := len(r.failures) > 0; got != want {
				t.Errorf("%s, Redis lost %v: failed %v %q, want %v", name, lost, got, r.failures, want)
			}
		}
	}
}
