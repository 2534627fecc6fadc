package runner_test

import (
	"errors"
	"testing"

	"flashsale/bench/internal/runner"
)

func TestTurn(t *testing.T) {
	t.Parallel()
	all := []string{"a", "b", "c", "d"}
	for place := range all {
		first := make(map[string]bool)
		for round := range all {
			first[runner.Turn(all, round)[place]] = true
		}
		if len(first) != len(all) {
			t.Errorf("place %d is taken by %d of %d", place, len(first), len(all))
		}
	}
}

func TestRun_JoinsErrors(t *testing.T) {
	t.Parallel()
	first, second := errors.New("first"), errors.New("second")
	err := runner.Finish(runner.Run(3, func(i int) error { return []error{first, nil, second}[i] }))
	if !errors.Is(err, first) || !errors.Is(err, second) {
		t.Errorf("err = %v, want both", err)
	}
}
