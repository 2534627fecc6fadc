package histogram_test

import (
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/internal/histogram"
)

func opts() histogram.Opts {
	return histogram.Opts{
		Name: "took_seconds", Help: "Time.", Labels: prometheus.Labels{"step": "a"},
		Bounds: []time.Duration{time.Millisecond, time.Second},
	}
}

// series is an exported histogram.
type series struct {
	count   uint64
	sum     float64
	buckets map[float64]uint64
	labels  map[string]string
}

// gather returns the exported histograms of some collectors.
func gather(t *testing.T, all ...prometheus.Collector) (out []series) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(all...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			h := m.GetHistogram()
			s := series{h.GetSampleCount(), h.GetSampleSum(), map[float64]uint64{}, map[string]string{}}
			for _, b := range h.GetBucket() {
				s.buckets[b.GetUpperBound()] = b.GetCumulativeCount()
			}
			for _, l := range m.GetLabel() {
				s.labels[l.GetName()] = l.GetValue()
			}
			out = append(out, s)
		}
	}
	return out
}

// A bound belongs to its bucket, a negative duration is zero, and a weighted observation counts
// as often as its weight.
func TestHistogram_Collect(t *testing.T) {
	t.Parallel()
	h := histogram.New(opts())
	h.Observe(0, -time.Second)
	h.Observe(1, time.Millisecond)
	h.ObserveN(-7, 2*time.Millisecond, 3)
	h.Observe(1<<40, time.Minute)
	want := series{6, 60.007, map[float64]uint64{0.001: 2, 1: 5}, map[string]string{"step": "a"}}
	if got := gather(t, h); len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("exported %+v, want %+v", got, want)
	}
}

// Nothing is lost among concurrent callers, whatever shards they use.
func TestHistogram_Concurrent(t *testing.T) {
	t.Parallel()
	h := histogram.New(opts())
	var callers sync.WaitGroup
	for i := range 16 {
		callers.Go(func() {
			for range 1000 {
				h.Observe(i, time.Microsecond)
			}
		})
	}
	callers.Wait()
	if got := gather(t, h); got[0].count != 16_000 {
		t.Errorf("%d observations, want 16000", got[0].count)
	}
}

// A series exists once it was asked for, and is asked for once.
func TestVec_With(t *testing.T) {
	t.Parallel()
	v := histogram.NewVec(opts(), "route")
	if got := gather(t, v); got != nil {
		t.Errorf("series before the first use: %v", got)
	}
	first := v.With("a")
	first.Observe(0, time.Second)
	if again := v.With("a"); again != first {
		t.Error("a series has two histograms")
	}
	v.With("b")
	if got := gather(t, v); len(got) != 2 {
		t.Errorf("series %v, want those of a and b", got)
	}
}

// The steps of different parts of the service can be registered together.
func TestPurchaseStep_ShareAName(t *testing.T) {
	t.Parallel()
	got := gather(t, histogram.PurchaseStep(histogram.StepQueue), histogram.PurchaseStep(histogram.StepCommit))
	if len(got) != 2 {
		t.Errorf("exported %+v", got)
	}
}

func TestNew_RefusesBounds(t *testing.T) {
	t.Parallel()
	for _, bounds := range [][]time.Duration{make([]time.Duration, 22), {2, 1}} {
		func() {
			defer func() {
				if p := recover(); p == nil || !strings.Contains(p.(string), "took_seconds") {
					t.Errorf("bounds %v: %v", bounds, p)
				}
			}()
			histogram.New(histogram.Opts{Name: "took_seconds", Help: "Time.", Bounds: bounds})
		}()
	}
}

// BenchmarkObserve compares an observation with that of the Prometheus client, on all processors.
func BenchmarkObserve(b *testing.B) {
	bounds := make([]float64, len(histogram.StepBounds))
	for i, bound := range histogram.StepBounds {
		bounds[i] = bound.Seconds()
	}
	theirs := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "took_seconds", Help: "Time.", Buckets: bounds})
	ours := histogram.PurchaseStep(histogram.StepScript)
	const took = 700 * time.Microsecond
	b.Run("client", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				theirs.Observe(took.Seconds())
			}
		})
	})
	b.Run("ours", func(b *testing.B) {
		var mu sync.Mutex
		next := 0
		b.RunParallel(func(pb *testing.PB) {
			mu.Lock()
			next++
			shard := next
			mu.Unlock()
			for pb.Next() {
				ours.Observe(shard, took)
			}
		})
	})
}
