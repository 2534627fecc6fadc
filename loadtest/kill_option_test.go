package main

import "testing"

func TestParseHit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]killSpec{"worker@50%": {"worker", 0.5}, "worker2@1%": {"worker2", 0.01}, "api1@99%": {"api1", 0.99}, "worker1@12.5%": {"worker1", 0.125}} {
		if got, err := parseKill(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "worker", "worker@", "worker@50", "worker@0%", "worker@100%", "worker@NaN%", "api2@50%", "redis@50%", "@50%"} {
		if got, err := parseKill(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
	if checkKilledOnce([]killSpec{{"worker1", 0.1}, {"worker2", 0.1}, {"api1", 0.5}}) != nil || checkKilledOnce([]killSpec{{"worker1", 0.1}, {"worker", 0.5}}) == nil || checkKilledOnce([]killSpec{{"api1", 0.1}, {"api1", 0.5}}) == nil {
		t.Error("a process may be killed once")
	}
}
