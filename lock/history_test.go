package lock

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// A history records the operations of lock clients, with the times of call and return. It is
// checked in two ways. The model below is a lock with a register that only its holder may
// access; the checker searches for an order of the operations that the model allows, with each
// operation at one moment between its call and its return. In addition the clients' views are
// compared directly: from the return of an acquire until its lock ended, no other client may
// believe that it holds the lock.

// histKind is the kind of an operation.
type histKind int

const (
	histAcquire histKind = iota
	histWrite            // to the register, under the guard
	histRead             // of the register, under the guard
	histRelease
	histLose  // the key may expire from the call on: the holder's time was up, or its context ended
	histForce // an outside command ended the holding, if any
)

// histOutcome is the outcome of an operation.
type histOutcome int

const (
	histOK histOutcome = iota
	histRefused
	histUnknown // no reply: it may have happened, or may happen later
)

// histInput is the call of one operation on one resource.
type histInput struct {
	kind     histKind
	resource int
	fence    int64 // of the calling holding, or of the one that an acquire got
	value    int64 // value to write
}

// histOutput is its return.
type histOutput struct {
	outcome histOutcome
	value   int64 // value that was read
}

// histState is one lock and its register.
type histState struct {
	holder   int64 // fence of the holder; 0 while the lock is free
	last     int64 // greatest fence so far
	register int64
}

// histModel is the model of the allowed results. Each resource is checked separately.
var histModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		var parts [][]porcupine.Operation
		for _, op := range history {
			r := op.Input.(histInput).resource
			for len(parts) <= r {
				parts = append(parts, nil)
			}
			parts[r] = append(parts[r], op)
		}
		return parts
	},
	Init: func() any { return histState{} },
	Step: func(state, input, output any) (bool, any) {
		return state.(histState).step(input.(histInput), output.(histOutput))
	},
	DescribeOperation: func(input, output any) string {
		return histDescribe(input.(histInput), output.(histOutput))
	},
}

// step reports whether the result is possible now, and returns the next state. An operation
// without a reply is always possible: if it never happened, that equals an effect after all
// other operations.
func (s histState) step(in histInput, out histOutput) (bool, histState) {
	held := s.holder == in.fence
	switch in.kind {
	case histAcquire:
		return s.holder == 0 && in.fence > s.last, histState{holder: in.fence, last: in.fence, register: s.register}
	case histForce:
		s.holder = 0
		return true, s
	case histLose, histRelease, histWrite, histRead:
	}
	if out.outcome == histRefused {
		return !held, s
	}
	possible := held || out.outcome == histUnknown || in.kind == histLose
	switch {
	case !held:
	case in.kind == histWrite:
		s.register = in.value
	case in.kind == histRead:
		possible = out.outcome == histUnknown || s.register == out.value
	default:
		s.holder = 0
	}
	return possible, s
}

func histDescribe(in histInput, out histOutput) string {
	kind := [...]string{"acquire", "write", "read", "release", "lose", "force"}[in.kind]
	outcome := [...]string{"", " refused", " unknown"}[out.outcome]
	text := fmt.Sprintf("%s #%d by %d%s", kind, in.resource, in.fence, outcome)
	switch {
	case in.kind == histWrite:
		text += fmt.Sprintf(" of %d", in.value)
	case in.kind == histRead && out.outcome == histOK:
		text += fmt.Sprintf(" got %d", out.value)
	}
	return text
}

// histOpen is the return time of an operation that may still happen after the history.
const histOpen = time.Duration(-1)

// history collects the operations of clients. It is safe for concurrent use.
type history struct {
	start time.Time

	mu       sync.Mutex
	ops      []porcupine.Operation
	holdings []histView
}

// histView is a period in which a client believed that it held a lock.
type histView struct {
	resource int
	fence    int64
	asked    time.Duration // when its acquire was called
	from, to time.Duration
}

func newHistory() *history { return &history{start: time.Now()} }

// now is the time on the history's clock, which is monotonic.
func (h *history) now() time.Duration { return h.at(time.Now()) }

func (h *history) at(t time.Time) time.Duration { return t.Sub(h.start) }

// add records one operation.
func (h *history) add(client int, call, ret time.Duration, in histInput, out histOutput) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: int64(call), Output: out, Return: int64(ret)})
}

// believe records one holding as its client saw it.
func (h *history) believe(b histView) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holdings = append(h.holdings, b)
}

// histWithin bounds the search for an order. If a search exceeds it, the test fails.
const histWithin = time.Minute

// check checks the whole history.
func (h *history) check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(h.linearizable(), h.exclusive())
}

// linearizable searches for an order that the model allows. The caller holds mu.
func (h *history) linearizable() error {
	ops := slices.Clone(h.ops)
	var last int64
	for _, op := range ops {
		last = max(last, op.Call, op.Return)
	}
	for i := range ops {
		if ops[i].Return == int64(histOpen) {
			ops[i].Return = last + 1
		}
	}
	result, info := porcupine.CheckOperationsVerbose(histModel, ops, histWithin)
	switch result {
	case porcupine.Ok:
		return nil
	case porcupine.Illegal:
		return fmt.Errorf("no order explains the history; %s", histStuck(histModel.Partition(ops), info.PartialLinearizationsOperations()))
	default:
		return fmt.Errorf("the search for an order of %d operations did not end in %s", len(ops), histWithin)
	}
}

// histStuck shows where the longest attempt ended, for each part without an order.
func histStuck(parts [][]porcupine.Operation, tried [][][]porcupine.Operation) string {
	const shown = 12
	var text strings.Builder
	for i, part := range parts {
		var longest []porcupine.Operation
		for _, order := range tried[i] {
			if len(order) > len(longest) {
				longest = order
			}
		}
		if len(longest) == len(part) {
			continue
		}
		fmt.Fprintf(&text, "resource %d, %d of %d operations in order, the last of them:\n", i, len(longest), len(part))
		for _, op := range longest[max(0, len(longest)-shown):] {
			fmt.Fprintln(&text, histLine(op))
		}
		done := make(map[porcupine.Operation]bool)
		for _, op := range longest {
			done[op] = true
		}
		rest := slices.DeleteFunc(slices.Clone(part), func(op porcupine.Operation) bool { return done[op] })
		slices.SortFunc(rest, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
		fmt.Fprintln(&text, "and no place for the first of these:")
		for _, op := range rest[:min(shown, len(rest))] {
			fmt.Fprintln(&text, histLine(op))
		}
	}
	return text.String()
}

func histLine(op porcupine.Operation) string {
	return fmt.Sprintf("  %12s to %12s  client %2d  %s", time.Duration(op.Call), time.Duration(op.Return), op.ClientId,
		histDescribe(op.Input.(histInput), op.Output.(histOutput)))
}

// exclusive compares the clients' own views. A holder whose lock was ended by an outside
// command learns of it later, so its view from then on does not count. The caller holds mu.
func (h *history) exclusive() error {
	views := slices.Clone(h.holdings)
	for i := range views {
		for _, op := range h.ops {
			in := op.Input.(histInput)
			if in.kind != histForce || in.resource != views[i].resource {
				continue
			}
			if op.Return == int64(histOpen) || time.Duration(op.Return) >= views[i].asked {
				views[i].to = min(views[i].to, time.Duration(op.Call))
			}
		}
	}
	slices.SortFunc(views, func(a, b histView) int {
		return cmp.Or(cmp.Compare(a.resource, b.resource), cmp.Compare(a.from, b.from))
	})
	var errs []error
	for i := 1; i < len(views); i++ {
		before, after := views[i-1], views[i]
		if before.resource != after.resource {
			continue
		}
		if before.to > after.from {
			errs = append(errs, fmt.Errorf("resource %d: %d took it at %s while %d held it until %s", after.resource, after.fence, after.from, before.fence, before.to))
		}
		// One that ends early must not hide a longer one before it.
		views[i].to = max(before.to, after.to)
	}
	return errors.Join(errs...)
}

// histStep is one operation of a handwritten history: client, time of call, time of return.
type histStep struct {
	call, ret time.Duration
	kind      histKind
	fence     int64
	value     int64
	outcome   histOutcome
}

func (s histStep) add(h *history) {
	out := histOutput{outcome: s.outcome}
	if s.kind == histRead {
		out.value = s.value
	}
	h.add(int(s.fence), s.call, s.ret, histInput{kind: s.kind, fence: s.fence, value: s.value}, out)
}

// TestHistory_Linearizable: the checker rejects histories that are impossible for a lock, and
// accepts possible ones.
func TestHistory_Linearizable(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		legal bool
		steps []histStep
	}{
		{"one after the other", true, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 4, histWrite, 5, 7, 0}, {5, 6, histRead, 5, 7, 0}, {7, 8, histRelease, 5, 0, 0}, {9, 10, histAcquire, 6, 0, 0}, {11, 12, histRead, 6, 7, 0}}},
		{"handed over during the release", true, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 9, histAcquire, 6, 0, 0}, {4, 10, histRelease, 5, 0, 0}}},
		{"two holders at once", false, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 4, histAcquire, 6, 0, 0}, {5, 6, histRelease, 5, 0, 0}, {7, 8, histRelease, 6, 0, 0}}},
		{"two holders at once, both write", false, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 20, histAcquire, 6, 0, 0}, {4, 5, histWrite, 6, 1, 0}, {6, 7, histWrite, 5, 2, 0}}},
		{"fence falls", false, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 4, histRelease, 5, 0, 0}, {5, 6, histAcquire, 4, 0, 0}}},
		{"fence repeats", false, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 4, histRelease, 5, 0, 0}, {5, 6, histAcquire, 5, 0, 0}}},
		{"lost, then another's", true, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, histOpen, histLose, 5, 0, 0}, {4, 6, histAcquire, 6, 0, 0}, {7, 8, histRelease, 5, 0, histRefused}}},
		{"another's before it was lost", false, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 4, histAcquire, 6, 0, 0}, {5, histOpen, histLose, 5, 0, 0}}},
		{"lost, but the key still there", true, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 9, histLose, 5, 0, 0}, {4, 6, histWrite, 5, 1, 0}, {7, 8, histRelease, 5, 0, 0}}},
		{"stale write accepted", false, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, histOpen, histLose, 5, 0, 0}, {4, 6, histAcquire, 6, 0, 0}, {7, 8, histWrite, 5, 1, 0}}},
		{"stale write refused", true, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, histOpen, histLose, 5, 0, 0}, {4, 6, histAcquire, 6, 0, 0}, {7, 8, histWrite, 5, 1, histRefused}, {9, 10, histRead, 6, 0, 0}}},
		{"write after release accepted", false, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 4, histRelease, 5, 0, 0}, {5, 6, histWrite, 5, 1, 0}}},
		{"holder's write refused", false, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 4, histWrite, 5, 1, histRefused}, {5, 6, histRelease, 5, 0, 0}}},
		{"holder's read refused", false, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 4, histRead, 5, 0, histRefused}, {5, 6, histRelease, 5, 0, 0}}},
		{"release by another accepted", false, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 4, histRelease, 5, 0, 0}, {5, 6, histAcquire, 6, 0, 0}, {7, 8, histRelease, 5, 0, 0}}},
		{"release by another freed it", false, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 4, histRelease, 4, 0, histRefused}, {5, 6, histAcquire, 6, 0, 0}}},
		{"holder's release refused", false, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 4, histRelease, 5, 0, histRefused}}},
		{"write lost on the way", true, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, histOpen, histWrite, 5, 1, histUnknown}, {5, 6, histRead, 5, 0, 0}, {7, 8, histRelease, 5, 0, 0}}},
		{"write whose reply was lost", true, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, histOpen, histWrite, 5, 1, histUnknown}, {5, 6, histRead, 5, 0, 0}, {7, 8, histRead, 5, 1, 0}}},
		{"write that was delivered after the release", false, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, histOpen, histWrite, 5, 1, histUnknown}, {5, 6, histRelease, 5, 0, 0}, {7, 8, histAcquire, 6, 0, 0}, {9, 10, histRead, 6, 0, 0}, {11, 12, histRead, 6, 1, 0}}},
		{"write forgotten", false, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 4, histWrite, 5, 1, 0}, {5, 6, histRead, 5, 0, 0}}},
		{"release whose reply was lost", true, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, histOpen, histRelease, 5, 0, histUnknown}, {5, 6, histAcquire, 6, 0, 0}}},
		{"freed by an outside command", true, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 4, histForce, 0, 0, 0}, {5, 6, histAcquire, 6, 0, 0}, {7, 8, histWrite, 5, 1, histRefused}, {9, 10, histRelease, 5, 0, histRefused}, {11, 12, histRelease, 6, 0, 0}}},
		{"refused although the outside command came later", false, []histStep{{1, 2, histAcquire, 5, 0, 0}, {3, 4, histWrite, 5, 1, histRefused}, {5, 6, histForce, 0, 0, 0}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := newHistory()
			for _, s := range tc.steps {
				s.add(h)
			}
			if err := h.linearizable(); (err == nil) != tc.legal {
				t.Errorf("legal = %v, want %v: %v", err == nil, tc.legal, err)
			}
		})
	}
}

// TestHistory_Partition: what is illegal for one resource is legal for two.
func TestHistory_Partition(t *testing.T) {
	t.Parallel()
	h := newHistory()
	h.add(0, 1, 2, histInput{kind: histAcquire, resource: 0, fence: 5}, histOutput{})
	h.add(1, 3, 4, histInput{kind: histAcquire, resource: 1, fence: 4}, histOutput{})
	h.believe(histView{0, 5, 1, 2, 9})
	h.believe(histView{1, 4, 3, 4, 9})
	check(t, h.check())
}

// TestHistory_Exclusive: the direct comparison finds every overlap except those caused by an
// outside command.
func TestHistory_Exclusive(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		legal    bool
		holdings []histView
		forced   [][2]time.Duration // calls and returns of outside commands
	}{
		{"apart", true, []histView{{0, 5, 8, 10, 20}, {0, 6, 18, 20, 30}, {0, 7, 33, 35, 40}}, nil},
		{"overlap", false, []histView{{0, 5, 8, 10, 21}, {0, 6, 18, 20, 30}}, nil},
		{"the one inside the other", false, []histView{{0, 6, 13, 15, 16}, {0, 5, 8, 10, 30}}, nil},
		{"the long one behind a short one", false, []histView{{0, 5, 8, 10, 50}, {0, 6, 48, 50, 51}, {0, 7, 38, 40, 41}}, nil},
		{"ended by an outside command", true, []histView{{0, 5, 8, 10, 30}, {0, 6, 18, 20, 40}}, [][2]time.Duration{{15, 18}}},
		{"an outside command that was too early", false, []histView{{0, 5, 8, 10, 30}, {0, 6, 18, 20, 40}}, [][2]time.Duration{{5, 7}}},
		{"an outside command before the acquire's return", true, []histView{{0, 5, 8, 10, 30}, {0, 6, 18, 20, 40}}, [][2]time.Duration{{5, 9}}},
		{"an outside command that was too late", false, []histView{{0, 5, 8, 10, 30}, {0, 6, 18, 20, 40}}, [][2]time.Duration{{25, 28}}},
		{"an outside command whose reply was lost", true, []histView{{0, 5, 8, 10, 30}, {0, 6, 18, 20, 40}}, [][2]time.Duration{{5, histOpen}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := newHistory()
			h.holdings = tc.holdings
			for _, f := range tc.forced {
				h.add(0, f[0], f[1], histInput{kind: histForce}, histOutput{})
			}
			if err := h.exclusive(); (err == nil) != tc.legal {
				t.Errorf("legal = %v, want %v: %v", err == nil, tc.legal, err)
			}
		})
	}
}
