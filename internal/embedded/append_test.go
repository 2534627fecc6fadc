package embedded_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

var appendScript = redis.NewScript(`
	for i = 1, tonumber(ARGV[2]) do
		redis.call('APPEND', KEYS[1], ARGV[1])
	end
	return redis.call('append', KEYS[1], '')`)

// TestAppend: long strings grow in the same way on both engines, also after others have changed them.
func TestAppend(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, key := await.Context(t), redistest.Prefix(t)+"long"
		grow := func(key, want string, n int) {
			t.Helper()
			piece := strings.Repeat("abcd", 512)
			length, err := appendScript.Run(ctx, rdb, []string{key}, piece, n).Int()
			if err != nil {
				t.Fatal(err)
			}
			want += strings.Repeat(piece, n)
			if got := rdb.Get(ctx, key).Val(); got != want || length != len(want) {
				t.Errorf("%d bytes that begin %.20q, reply %d; want %d bytes that begin %.20q", len(got), got, length, len(want), want)
			}
		}
		grow(key, "", 10)
		grow(key, rdb.Get(ctx, key).Val(), 10)

		other := strings.Repeat("efgh", 10<<10) // of the same length
		rdb.Set(ctx, key, other, time.Hour)
		grow(key, other, 3)
		if left := rdb.TTL(ctx, key).Val(); left <= 0 {
			t.Errorf("time to live %v after APPEND, want up to an hour", left)
		}
		rdb.SetRange(ctx, key, 0, "z")
		grow(key, rdb.Get(ctx, key).Val(), 3)
		rdb.Rename(ctx, key, key+"2")
		grow(key, "", 3)
		grow(key+"2", rdb.Get(ctx, key+"2").Val(), 3)

		rdb.PExpire(ctx, key, time.Millisecond)
		await.True(t, "the key has expired", func() bool { return rdb.Exists(ctx, key).Val() == 0 })
		grow(key, "", 3)
		rdb.Del(ctx, key)
		rdb.RPush(ctx, key, "a")
		if err := appendScript.Run(ctx, rdb, []string{key}, "x", 1).Err(); !redis.HasErrorPrefix(err, "WRONGTYPE") {
			t.Errorf("APPEND to a list: %v", err)
		}
	})
}

// TestAppend_Cost: what an APPEND allocates does not depend on the length of the string.
func TestAppend_Cost(t *testing.T) { //nolint:paralleltest // it counts the process's allocations
	rdb := redistest.Embedded(t)
	ctx := await.Context(t)
	const size, times = 4 << 20, 500
	rdb.Set(ctx, "long", strings.Repeat("x", size), 0)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := appendScript.Run(ctx, rdb, []string{"long"}, strings.Repeat("y", 200), times).Err(); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 10*size {
		t.Errorf("%d times APPEND to a string of %d MB allocated %d MB", times, size>>20, used>>20)
	}
}

// TestAppend_Sweep: the buffers of deleted strings do not pile up.
func TestAppend_Sweep(t *testing.T) { //nolint:paralleltest // it measures the process's memory
	rdb := redistest.Embedded(t)
	ctx := await.Context(t)
	const size = 1 << 20
	long := strings.Repeat("x", size)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 100 {
		key := redistest.Prefix(t)
		rdb.Set(ctx, key, long, 0)
		if err := appendScript.Run(ctx, rdb, []string{key}, "y", 1).Err(); err != nil {
			t.Fatal(err)
		}
		rdb.Del(ctx, key)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 50*size {
		t.Errorf("%d MB are kept of 100 deleted strings of %d MB", kept>>20, size>>20)
	}
}
