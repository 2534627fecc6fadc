package load_test

import (
	"cmp"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"flashsale/bench/internal/load"
)

func TestEven(t *testing.T) {
	t.Parallel()
	want := []time.Duration{0, 250 * time.Millisecond, 500 * time.Millisecond, 750 * time.Millisecond}
	if got := load.Even(4, time.Second); !slices.Equal(got, want) {
		t.Errorf("4 a second for a second: %v, want %v", got, want)
	}
	if got := load.Even(10, 0); len(got) != 0 {
		t.Errorf("10 a second for no time: %v, want none", got)
	}
}

func TestPoisson(t *testing.T) {
	t.Parallel()
	const rate, seconds = 1000, 100
	due := load.Poisson(rate, seconds*time.Second, 7)
	if !slices.IsSorted(due) || due[0] < 0 || due[len(due)-1] >= seconds*time.Second {
		t.Errorf("not sorted, or outside 0 to %d s: %v to %v", seconds, due[0], due[len(due)-1])
	}
	// The number of arrivals and the variance of the distances are within five standard
	// deviations; the seed is fixed, so the result is always the same.
	if want := float64(rate * seconds); math.Abs(float64(len(due))-want) > 5*math.Sqrt(want) {
		t.Errorf("%d arrivals, want about %.0f", len(due), want)
	}
	var squares float64
	for i := 1; i < len(due); i++ {
		squares += math.Pow((due[i]-due[i-1]).Seconds()*rate-1, 2)
	}
	if variance := squares / float64(len(due)-1); math.Abs(variance-1) > 0.05 {
		t.Errorf("the distances have a variance of %.3f squared means, want 1: they are not exponential", variance)
	}
	if again := load.Poisson(rate, seconds*time.Second, 7); !slices.Equal(due, again) {
		t.Error("the same seed gives other times")
	}
	if other := load.Poisson(rate, seconds*time.Second, 8); slices.Equal(due, other) {
		t.Error("another seed gives the same times")
	}
}

// seller is a server that answers every purchase with a status and collects the keys.
func seller(t *testing.T, status int, keys *sync.Map) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, twice := keys.LoadOrStore(r.Header.Get("Idempotency-Key"), r.Host); twice {
			t.Errorf("key %s was sent twice", r.Header.Get("Idempotency-Key"))
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func crowd(t *testing.T) *load.Crowd {
	t.Helper()
	c, err := load.NewCrowd(10)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCrowd_Offer(t *testing.T) {
	t.Parallel()
	var keys sync.Map
	p := load.Purchases{
		Addr: seller(t, http.StatusAccepted, &keys), Also: []string{seller(t, http.StatusAccepted, &keys)},
		Items: []string{"a", "b"}, Connections: 4, First: 100,
	}
	due := load.Even(100_000, 2*time.Millisecond)
	var mu sync.Mutex
	var answers []load.Answer
	err := crowd(t).Offer(t.Context(), p, due, func(a *load.Answer) {
		mu.Lock()
		defer mu.Unlock()
		answers = append(answers, *a)
	})
	if err != nil || len(answers) != len(due) {
		t.Fatalf("%d answers, %v; want %d", len(answers), err, len(due))
	}
	slices.SortFunc(answers, func(a, b load.Answer) int { return cmp.Compare(a.Due, b.Due) })
	for i, a := range answers {
		if a.Status != http.StatusAccepted || a.Err != nil || a.Due != due[i] || a.Sent < a.Due || a.Done < a.Sent {
			t.Errorf("answer %d is %+v, want one of 202, sent at %v or later", i, a, due[i])
		}
		if _, sent := keys.Load(load.Key(p.First + int64(i))); !sent {
			t.Errorf("purchase %d was not sent", i)
		}
	}
}

func TestCrowd_Offer_CountsFromTheTimeItWasDue(t *testing.T) {
	t.Parallel()
	var keys sync.Map
	// One connection and three requests that are due together: each waits for the one before.
	p := load.Purchases{Addr: seller(t, http.StatusCreated, &keys), Items: []string{"a"}, Connections: 1}
	var answers []load.Answer
	if err := crowd(t).Offer(t.Context(), p, make([]time.Duration, 3), func(a *load.Answer) { answers = append(answers, *a) }); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(answers); i++ {
		if a, before := answers[i], answers[i-1]; a.Late() < before.Latency() || a.Latency() <= before.Latency() {
			t.Errorf("request %d was %v late with a latency of %v, after one of %v; want the wait included", i, a.Late(), a.Latency(), before.Latency())
		}
	}
}

func TestCrowd_Measure(t *testing.T) {
	t.Parallel()
	var keys sync.Map
	p := load.Purchases{Addr: seller(t, http.StatusCreated, &keys), Items: []string{"a"}, Connections: 3, First: 5}
	b, err := crowd(t).Measure(t.Context(), p, 20*time.Millisecond, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	keys.Range(func(any, any) bool { sent++; return true })
	if b.Next != p.First+int64(sent) || b.Codes[http.StatusCreated] > sent {
		t.Errorf("next %d and %v counted; %d were sent from %d on", b.Next, b.Codes, sent, p.First)
	}
}

func TestCrowd_Measure_NoServer(t *testing.T) {
	t.Parallel()
	p := load.Purchases{Addr: "127.0.0.1:1", Items: []string{"a"}, Connections: 2}
	if _, err := crowd(t).Measure(t.Context(), p, time.Hour, time.Hour); err == nil {
		t.Error("a load without a server succeeds")
	}
}
