package ratelimit

import (
	"strconv"
	"sync"
	"testing"
	"time"
)

var someTime = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func TestLimiter(t *testing.T) {
	t.Parallel()
	l := New(10, 3)
	now := someTime
	take := func(key string) bool { return l.Allow(key, now) == nil }
	for i := range 3 {
		if !take("a") {
			t.Fatalf("request %d of the burst was refused", i)
		}
	}
	if take("a") {
		t.Error("a fourth was allowed")
	}
	if !take("b") {
		t.Error("another key uses the first one's bucket")
	}
	now = now.Add(99 * time.Millisecond)
	if take("a") {
		t.Error("allowed before a token was there")
	}
	now = now.Add(time.Millisecond)
	if !take("a") || take("a") {
		t.Error("after 100 ms there is exactly one token")
	}
	// The generations change; a bucket in use keeps its level.
	for range 50 {
		now = now.Add(100 * time.Millisecond)
		if !take("a") || take("a") {
			t.Fatal("a bucket in use was dropped")
		}
	}
	// An unused one is full again, but not above its burst.
	now = now.Add(time.Hour)
	for i := range 4 {
		if got := take("a"); got != (i < 3) {
			t.Errorf("after an hour, request %d: %t", i, got)
		}
	}
}

// BenchmarkHotPath_Allow counts requests of known buyers.
func BenchmarkHotPath_Allow(b *testing.B) {
	l := New(1e9, 1<<30)
	keys := make([]string, 1024)
	for i := range keys {
		keys[i] = "buyer-" + strconv.Itoa(i)
		if err := l.Allow(keys[i], someTime); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := l.Allow(keys[i%len(keys)], someTime); err != nil {
			b.Fatal(err)
		}
	}
}

// The memory is bounded, whatever the number of keys.
func TestLimiter_MemoryIsBounded(t *testing.T) {
	t.Parallel()
	l := New(1, 1000)
	l.most = 8
	for i := range 100_000 {
		if err := l.Allow(strconv.Itoa(i), someTime); err != nil {
			t.Fatal(err)
		}
	}
	kept := 0
	for i := range l.shards {
		kept += len(l.shards[i].young) + len(l.shards[i].old)
	}
	if most := 2 * 64 * l.most; kept > most {
		t.Errorf("%d buckets are kept, want at most %d", kept, most)
	}
}

func TestLimiter_Concurrent(t *testing.T) {
	t.Parallel()
	l := New(0.001, 50)
	var wg sync.WaitGroup
	var mu sync.Mutex
	allowed := 0
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if l.Allow("a", someTime) == nil {
					mu.Lock()
					allowed++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if allowed != 50 {
		t.Errorf("%d were allowed, want the burst of 50", allowed)
	}
}

func TestAddressKey(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "2001:db8::1": "2001:db8::/64", "2001:db8::2:1": "2001:db8::/64", "2001:db8:0:1::1": "2001:db8:0:1::/64",
		"::ffff:192.0.2.1": "::ffff:192.0.2.1", "fe80::1%eth0": "fe80::/64", "": "",
	} {
		if got := AddressKey(address); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}
