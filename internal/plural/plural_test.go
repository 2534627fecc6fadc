package plural

import "testing"

func TestCount(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"0 orders":       Count(0, "order"),
		"1 order":        Count(1, "order"),
		"2 dead letters": Count(int64(2), "dead letter"),
		"-1 units":       Count(-1, "unit"),
		"3 deliveries":   Count(3, "delivery"),
		"3 keys":         Count(3, "key"),
		"3 processes":    Count(3, "process"),
		"1 process":      Count(1, "process"),
		"3 APIs":         Count(3, "API"),
		"2 batches":      Count(2, "batch"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
