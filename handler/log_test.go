package handler

import (
	"bytes"
	"context"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"flashsale/handler/ops"
)

// TestLog_request: the duration of a request in the log has the unit in the field's name.
func TestLog_request(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var passed atomic.Int64
	s := open(t, func(c *Config) {
		c.Log = zerolog.New(&out)
		c.Now = func() time.Time { return someTime.Add(time.Duration(passed.Load())) }
		c.Ready = []ops.Check{{Name: "clock", Probe: func(context.Context) error {
			passed.Store(int64(1500 * time.Microsecond))
			return nil
		}}}
	})
	s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/readyz", nil))
	if got := decodeBody(t, &out); got["message"] != "request" || got["took_ms"] != 1.5 || got["status"] != 200.0 {
		t.Errorf("logged %v, want took_ms 1.5", got)
	}
}
