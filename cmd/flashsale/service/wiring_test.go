//go:build unix

package service

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"flashsale/catalog"
)

// A new connection to Redis nudges the recovery, and the stock notifies the recovery and the
// catalogue of its events.
func TestRecovery_IsNudgedByNewConnections(t *testing.T) {
	t.Parallel()
	s, err := settingsOf("--data-dir=" + t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	e := &env{settings: s, role: Serve, log: zerolog.Nop(), out: io.Discard, registry: prometheus.NewRegistry(), now: time.Now}
	var ps parts
	eng, err := openEngine(t.Context(), e, &ps)
	t.Cleanup(func() {
		if err := (&lifecycle{parts: ps}).close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(eng.nudges) != 1 { // openEngine has used the first connection
		t.Error("a new connection did not nudge")
	}
	r := newRecovery(e, eng, nil, nil, nil)
	if r.Nudges != eng.nudges {
		t.Error("the recovery waits for other nudges than those of the connections")
	}
	if o := observers(r, new(catalog.Catalog), nil); o.OnChange == nil || o.OnRestart == nil || o.OnLoss == nil {
		t.Errorf("some events of the stock have no observer: %+v", o)
	}
}
