package embedded_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
)

// BenchmarkScript runs a script of ten commands.
func BenchmarkScript(b *testing.B) {
	rdb := redistest.Embedded(b)
	script := redis.NewScript(`
		local n = 0
		for i = 1, 5 do
			redis.call('HSET', KEYS[1], 'f' .. i, ARGV[1])
			n = n + redis.call('HLEN', KEYS[1])
		end
		return n`)
	if err := script.Load(b.Context(), rdb).Err(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := script.EvalSha(b.Context(), rdb, []string{"k"}, "value").Err(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAppend adds the keys of a batch of 50 orders to those of a million.
func BenchmarkAppend(b *testing.B) {
	rdb := redistest.Embedded(b)
	if err := rdb.Set(b.Context(), "keys", strings.Repeat("x", 4<<20), 0).Err(); err != nil {
		b.Fatal(err)
	}
	script, more := redis.NewScript(`return redis.call('APPEND', KEYS[1], ARGV[1])`), strings.Repeat("y", 200)
	if err := script.Load(b.Context(), rdb).Err(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := script.EvalSha(b.Context(), rdb, []string{"keys"}, more).Err(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKeys runs a script of one command beside many keys, half of which have a time to live.
func BenchmarkKeys(b *testing.B) {
	fill := redis.NewScript(`
		for i = 1, tonumber(ARGV[1]), 2 do
			redis.call('SET', 'key:of:an:item:' .. i, 1)
			redis.call('SET', 'key:of:an:item:' .. i + 1, 1, 'PX', 3600000)
		end
		return 1`)
	script := redis.NewScript(`return redis.call('GET', KEYS[1])`)
	for _, keys := range []int{10, 1_000, 50_000} {
		b.Run(strconv.Itoa(keys), func(b *testing.B) {
			rdb := redistest.Embedded(b)
			if err := errors.Join(fill.Run(b.Context(), rdb, nil, keys).Err(), script.Load(b.Context(), rdb).Err()); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if err := script.EvalSha(b.Context(), rdb, []string{"k"}).Err(); err != nil && !errors.Is(err, redis.Nil) {
					b.Fatal(err)
				}
			}
		})
	}
}
