package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"flashsale/internal/wire"
)

func TestProber_Probe(t *testing.T) {
	t.Parallel()
	const page, depths = `{"stock_left":7}`, `{"queues":[{"name":"orders-0","orders":2,"oldest_age_ms":5},{"name":"expiries-0","orders":9,"oldest_age_ms":99}]}`
	tests := []struct {
		name        string
		page, queue int
		body        string
		stock       int64 // -1: not stated
		queued      int64
		down        bool
		noQueue     bool
	}{
		{"all", 200, 200, page, 7, 2, false, false},
		{"no stock", 200, 200, `{}`, -1, 2, false, false},
		{"not JSON", 200, 200, `<p>`, -1, 2, false, false},
		{"forbidden", 200, 403, page, 7, -1, false, true},
		{"busy", 429, 429, page, -1, -1, false, false},
		{"item gone", 404, 200, page, -1, 2, false, false},
		{"page down", 503, 200, page, -1, -1, true, false},
		{"queue down", 200, 500, page, 7, -1, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				status, body := tt.page, tt.body
				if r.URL.Path == "/v1/admin/queue" {
					status, body = tt.queue, depths
				}
				w.WriteHeader(status)
				if _, err := w.Write([]byte(body)); err != nil {
					t.Error(err)
				}
			}))
			defer srv.Close()
			target, err := wire.ParseTarget(srv.URL)
			if err != nil {
				t.Fatal(err)
			}
			p := newProber(newAPI(target, "t"), "x", nil)
			defer p.api.close()
			seen, err := p.probe(t.Context())
			if errors.Is(err, errDown) != tt.down || p.noQueue != tt.noQueue {
				t.Fatalf("%v, no queue: %v", err, p.noQueue)
			}
			if got := orMinus(seen.stock); got != tt.stock && !tt.down {
				t.Errorf("stock %d, want %d", got, tt.stock)
			}
			if got := orMinus(seen.queued); got != tt.queued {
				t.Errorf("queued %d, want %d", got, tt.queued)
			}
			if tt.queued >= 0 && seen.oldest != 5*time.Millisecond {
				t.Errorf("oldest %s", seen.oldest)
			}
		})
	}
}

func orMinus(v *int64) int64 {
	if v == nil {
		return -1
	}
	return *v
}

// An outage lasts from the first failed probe to the first one that is answered again, or
// to the end of the run.
func TestProber_Outages(t *testing.T) {
	t.Parallel()
	r, start := recorded(shot{})
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	p := &prober{rec: r}
	for i, err := range []error{nil, errDown, errDown, nil, nil, errDown} {
		p.note(sighting{}, err, at(i), at(i).Add(500*time.Millisecond))
	}
	p.end(at(9))
	if want := []outage{{noAnswer, 1, 3.5}, {noAnswer, 5, 9}}; !slices.Equal(r.outages, want) {
		t.Errorf("outages %v, want %v", r.outages, want)
	}
}
