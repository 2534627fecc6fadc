package lock

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
)

// BenchmarkHotPath_AcquireRelease takes one uncontended lock after the other, with two
// round trips each.
func BenchmarkHotPath_AcquireRelease(b *testing.B) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	m, name := benchManager(b, redistest.Volatile(b))
	b.ReportAllocs()
	for b.Loop() {
		l, err := m.Acquire(ctx, name)
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Release(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkManager_Handover passes one lock back and forth between two managers
// that always want it.
func BenchmarkManager_Handover(b *testing.B) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	rdb := redistest.Volatile(b)
	m, name := benchManager(b, rdb)
	other, err := New(rdb, slow)
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		for {
			l, err := other.Acquire(ctx, name)
			if err == nil {
				err = l.Release(ctx)
			}
			if err != nil {
				done <- other.Close(context.WithoutCancel(ctx))
				return
			}
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		l, err := m.Acquire(ctx, name)
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Release(ctx); err != nil {
			b.Fatal(err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		b.Error(err)
	}
}

func benchManager(b *testing.B, rdb *redis.Client) (*Manager, string) {
	m, err := New(rdb, slow)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := m.Close(context.WithoutCancel(b.Context())); err != nil {
			b.Error(err)
		}
	})
	return m, redistest.Prefix(b) + "bench"
}
