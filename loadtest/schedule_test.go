package main

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestSchedule_HandsOutWhenDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dues := []time.Duration{0, 0, time.Second, 3 * time.Second}
		var shots []shot
		for i, due := range dues {
			shots = append(shots, shot{i, due})
		}
		s := newSchedule(time.Now(), shots)
		for i, due := range dues {
			got, ok := s.take(t.Context())
			if at := time.Since(s.start); !ok || got.shot != i || at != due {
				t.Errorf("shot %d at %s, %v; want %d at %s", got.shot, at, ok, i, due)
			}
			s.settle()
		}
		if _, ok := s.take(t.Context()); ok {
			t.Error("a shot beyond the last")
		}
	})
}

// A retry that comes while a worker waits for a later shot is sent first, and never before it
// is due.
func TestSchedule_RetryOvertakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSchedule(time.Now(), []shot{{0, 0}, {1, 10 * time.Second}})
		first, ok := s.take(t.Context())
		if !ok {
			t.Fatal("no first shot")
		}
		type taken struct {
			ticket
			at time.Duration
		}
		got := make(chan taken, 2)
		go func() {
			for range 2 {
				tk, ok := s.take(t.Context())
				if !ok {
					t.Error("ended early")
				}
				got <- taken{tk, time.Since(s.start)}
				s.settle()
			}
		}()
		synctest.Wait() // the goroutine waits for the shot at 10 s
		s.again(first, 2*time.Second)
		if r := <-got; r.shot != 0 || r.attempt != 1 || r.at != 2*time.Second {
			t.Errorf("first came %+v", r)
		}
		if r := <-got; r.shot != 1 || r.attempt != 0 || r.at != 10*time.Second {
			t.Errorf("then came %+v", r)
		}
	})
}

// Workers that wait while the last requests are in flight must all return.
func TestSchedule_EndReleasesWorkers(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *schedule, cancel context.CancelFunc){
		"settled":     func(s *schedule, _ context.CancelFunc) { s.settle() },
		"interrupted": func(_ *schedule, cancel context.CancelFunc) { cancel() },
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := newSchedule(time.Now(), []shot{{0, 0}})
			if _, ok := s.take(ctx); !ok {
				t.Fatal("no shot")
			}
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					if _, ok := s.take(ctx); ok {
						t.Errorf("%s: a shot from nowhere", name)
					}
				})
			}
			synctest.Wait()
			end(s, cancel)
			wg.Wait()
			if at := time.Since(s.start); at != 0 {
				t.Errorf("%s: released after %s", name, at)
			}
		})
	}
}
