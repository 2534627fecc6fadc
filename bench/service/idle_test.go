package main

import (
	"bytes"
	"testing"
)

func TestMeasureIdle(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := measureIdle(t.Context(), tiny(t, &out)); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, name := range []string{"idle_cpu_api", "idle_cpu_worker", "idle_cpu_redis"} {
		if v := figure(t, out.String(), name); v < 0 {
			t.Errorf("%s is %v", name, v)
		}
	}
}
