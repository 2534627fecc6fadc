package embedded_test

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/embedded"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// engines runs a test on a real Redis, and on an embedded one that has run for an hour.
func engines(t *testing.T, test func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, olderServer(t))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, redistest.Redis(t))
	})
}

func olderServer(t testing.TB) *redis.Client {
	t.Helper()
	s, err := embedded.StartAt(time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), ReadTimeout: await.Limit, WriteTimeout: await.Limit, PoolTimeout: await.Limit})
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	return rdb
}

// ways are the ways in which a command reaches a server.
var ways = map[string]func(t *testing.T, rdb *redis.Client, args ...any) error{
	"client": func(t *testing.T, rdb *redis.Client, args ...any) error {
		return rdb.Do(await.Context(t), args...).Err()
	},
	"script": func(t *testing.T, rdb *redis.Client, args ...any) error {
		return rdb.Eval(await.Context(t), "return redis.call(unpack(ARGV))", nil, args...).Err()
	},
	"script of miniredis": func(t *testing.T, rdb *redis.Client, args ...any) error {
		return rdb.Eval(await.Context(t), "local r = redis.call(unpack(ARGV)); cjson.encode({1}); return r", nil, args...).Err()
	},
}

// inTransaction runs a command in a transaction of its own.
func inTransaction(t *testing.T, rdb *redis.Client, args ...any) error {
	var done *redis.Cmd
	_, err := rdb.TxPipelined(await.Context(t), func(p redis.Pipeliner) error {
		done = p.Do(await.Context(t), args...)
		return nil
	})
	return errors.Join(err, done.Err())
}

// settings are the commands that give a key, which exists, a time to live in seconds.
func settings(key string, seconds int64) map[string][]any {
	at := time.Now().Unix() + seconds
	return map[string][]any{
		"SET EX": {"SET", key, "v", "EX", seconds}, "SET PX": {"set", key, "v", "xx", "px", seconds * 1000},
		"SET EXAT": {"SET", key, "v", "EXAT", at}, "SET PXAT": {"SET", key, "v", "PXAT", at * 1000},
		"SETEX": {"SETEX", key, seconds, "v"}, "PSETEX": {"PSETEX", key, seconds * 1000, "v"},
		"EXPIRE": {"EXPIRE", key, seconds}, "PEXPIRE": {"PEXPIRE", key, seconds * 1000},
		"EXPIREAT": {"EXPIREAT", key, at}, "PEXPIREAT": {"PEXPIREAT", key, at * 1000},
		"GETEX EX": {"GETEX", key, "EX", seconds}, "GETEX PXAT": {"GETEX", key, "PXAT", at * 1000},
	}
}

// TestExpiry_TTL: each way to set a time to live has the same effect on both engines.
func TestExpiry_TTL(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		for way, do := range ways {
			key := redistest.Prefix(t) + "k"
			for name, args := range settings(key, 3600) {
				rdb.Set(ctx, key, "v", 0)
				if err := do(t, rdb, args...); err != nil {
					t.Errorf("%s by a %s: %v", name, way, err)
					continue
				}
				const least = 3_000_000
				left, inScript := rdb.PTTL(ctx, key).Val().Milliseconds(), rdb.Eval(ctx, "return redis.call('PTTL', KEYS[1])", []string{key}).Val()
				if n, ok := inScript.(int64); left < least || left > 3_600_000 || !ok || n < least || n > 3_600_000 {
					t.Errorf("%s by a %s: PTTL %d, in a script %v; want an hour", name, way, left, inScript)
				}
				if s := rdb.TTL(ctx, key).Val(); s < least*time.Millisecond || s > time.Hour {
					t.Errorf("%s by a %s: TTL %v", name, way, s)
				}
				if at := rdb.PExpireTime(ctx, key).Val(); time.Until(time.UnixMilli(at.Milliseconds())) < least*time.Millisecond {
					t.Errorf("%s by a %s: PEXPIRETIME %v", name, way, at)
				}
			}
		}
	})
}

// TestExpiry_Expires: keys are gone after their time to live, and others stay.
func TestExpiry_Expires(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		prefix := redistest.Prefix(t)
		gone := map[string]bool{}
		for way, do := range ways {
			for name := range settings("", 1) {
				key := prefix + way + name
				rdb.Set(ctx, key, "v", 0)
				if err := do(t, rdb, settings(key, 1)[name]...); err != nil {
					t.Errorf("%s by a %s: %v", name, way, err)
				}
				gone[key] = true
			}
		}
		kept := prefix + "kept"
		// On a busy machine a key may expire before the command that keeps it, which then says so.
		await.True(t, "a time to live is removed", func() bool {
			rdb.Set(ctx, kept+"1", "v", time.Second)
			return rdb.Persist(ctx, kept+"1").Val()
		})
		rdb.Set(ctx, kept+"2", "v", time.Second)
		rdb.Set(ctx, kept+"2", "v", 0)
		await.True(t, "a time to live is extended", func() bool {
			rdb.Set(ctx, kept+"3", "v", time.Second)
			return rdb.Expire(ctx, kept+"3", time.Hour).Val()
		})
		rdb.Set(ctx, prefix+"renamed", "v", time.Second)
		rdb.Rename(ctx, prefix+"renamed", prefix+"name")
		rdb.Copy(ctx, prefix+"name", prefix+"copy", 0, false)
		rdb.Set(ctx, prefix+"shortened", "v", time.Hour)
		rdb.PExpire(ctx, prefix+"shortened", 50*time.Millisecond)
		rdb.Set(ctx, prefix+"extended", "v", 50*time.Millisecond)
		rdb.PExpire(ctx, prefix+"extended", time.Second)
		for _, key := range []string{"name", "copy", "shortened", "extended"} {
			gone[prefix+key] = true
		}
		for key := range gone {
			await.True(t, key+" has expired", func() bool { return rdb.Exists(ctx, key).Val() == 0 })
		}
		if n := rdb.Exists(ctx, kept+"1", kept+"2", kept+"3").Val(); n != 3 {
			t.Errorf("%d of 3 keys are left whose time to live was removed or extended", n)
		}
		// Negative ones delete at once, also within a script.
		for _, command := range []string{"'PEXPIRE', KEYS[1], -1", "'EXPIRE', KEYS[1], 0", "'PEXPIREAT', KEYS[1], 1", "'EXPIREAT', KEYS[1], " + strconv.FormatInt(time.Now().Unix()-60, 10)} {
			if n := rdb.Eval(ctx, "redis.call('SET', KEYS[1], 1); redis.call("+command+"); return redis.call('EXISTS', KEYS[1])", []string{prefix + "k"}).Val(); n != int64(0) {
				t.Errorf("EXISTS after %s: %v", command, n)
			}
		}
	})
}

// TestExpiry_Waiting: a key expires although the command that sets it has waited for longer than its time to live.
func TestExpiry_Waiting(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, prefix := await.Context(t), redistest.Prefix(t)
		const clients, times = 4, 50
		busy := redis.NewScript("for i = 1, 100000 do end return redis.call('EXISTS', KEYS[1])")
		var all sync.WaitGroup
		for c := range clients {
			all.Go(func() {
				for range times {
					if err := busy.Run(ctx, rdb, []string{prefix}).Err(); err != nil {
						t.Error(err)
					}
				}
			})
			all.Go(func() {
				for i := range times {
					if err := rdb.Set(ctx, fmt.Sprint(prefix, c, ":", i), "v", time.Millisecond).Err(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		await.True(t, "the keys have expired", func() bool { return len(rdb.Keys(ctx, prefix+"*").Val()) == 0 })
	})
}

// TestExpiry_Refused: a time to live that is no number or not positive is refused, and the key stays.
func TestExpiry_Refused(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		key := redistest.Prefix(t) + "k"
		rdb.Set(ctx, key, "v", 0)
		for _, args := range [][]any{
			{"SET", key, "w", "PX", 0}, {"SET", key, "w", "EX", -1}, {"SET", key, "w", "PX", "x"}, {"SETEX", key, 0, "w"}, {"PSETEX", key, -5, "w"},
			{"SETEX", key, "1.5", "w"}, {"EXPIRE", key, "soon"}, {"PEXPIRE", key}, {"SET", key}, {"TTL"}, {"TIME", "now"},
		} {
			for way, do := range ways {
				if err := do(t, rdb, args...); err == nil {
					t.Errorf("%v by a %s: no error", args, way)
				}
			}
		}
		if v, ttl := rdb.Get(ctx, key).Val(), rdb.TTL(ctx, key).Val(); v != "v" || ttl != -1 {
			t.Errorf("%q, TTL %v", v, ttl)
		}
		for _, c := range []struct {
			args []any
			want int64
		}{{[]any{"EXPIRE", key + "none", 10}, 0}, {[]any{"TTL", key + "none"}, -2}, {[]any{"PTTL", key}, -1}} {
			if n, err := rdb.Do(ctx, c.args...).Int64(); err != nil || n != c.want {
				t.Errorf("%v: %d, %v, want %d", c.args, n, err, c.want)
			}
		}
	})
}

// TestExpiry_NotOffered: what the embedded engine cannot do is refused.
func TestExpiry_NotOffered(t *testing.T) {
	t.Parallel()
	rdb := olderServer(t)
	ctx := await.Context(t)
	rdb.Set(ctx, "k", "v", time.Hour)
	rdb.HSet(ctx, "h", "f", "v")
	rdb.Set(ctx, "l", "v", 0)
	refused := func(err error) bool {
		return err != nil && (strings.Contains(err.Error(), "embedded engine") || strings.Contains(err.Error(), "not allowed from script") ||
			strings.HasPrefix(err.Error(), "EXECABORT"))
	}
	for _, args := range [][]any{
		{"HEXPIRE", "h", 10, "FIELDS", 1, "f"}, {"HPEXPIREAT", "h", 10, "FIELDS", 1, "f"}, {"HSETEX", "h", "EX", 10, "FIELDS", 1, "f", "v"},
		{"SELECT", 1}, {"MOVE", "k", 1}, {"SWAPDB", 0, 1}, {"COPY", "k", "k2", "DB", 1},
	} {
		for way, do := range ways {
			if err := do(t, rdb, args...); !refused(err) {
				t.Errorf("%v by a %s: %v", args, way, err)
			}
		}
	}
	in := [][]any{{"TTL", "k"}, {"PTTL", "k"}, {"TIME"}, {"RENAME", "k", "l"}, {"RENAMENX", "k", "m"}, {"COPY", "k", "m"}, {"RESTORE", "m", 1000, "v"}}
	for _, args := range settings("l", 1) {
		in = append(in, args)
	}
	for _, args := range in {
		if err := inTransaction(t, rdb, args...); !refused(err) {
			t.Errorf("%v in a transaction: %v", args, err)
		}
	}
	if err := inTransaction(t, rdb, "SET", "m", "w"); err != nil {
		t.Errorf("SET without a time to live in a transaction: %v", err)
	}
	if k, l, m := rdb.Get(ctx, "k").Val(), rdb.TTL(ctx, "l").Val(), rdb.Get(ctx, "m").Val(); k != "v" || l != -1 || m != "w" {
		t.Errorf("k %q, TTL of l %v, m %q", k, l, m)
	}
	if err := rdb.Do(ctx, "SELECT", 0).Err(); err != nil {
		t.Error(err)
	}
}

// TestTime: the clock is the system's. In the embedded engine it stands still while a script runs.
func TestTime(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		before := time.Now()
		at := rdb.Time(ctx).Val()
		if at.Before(before.Truncate(time.Microsecond)) || at.After(time.Now()) {
			t.Errorf("TIME %v is not between %v and now", at, before)
		}
		got, err := rdb.Eval(ctx, `
			local a = redis.call('TIME')
			for i = 1, 1000 do redis.call('TIME') end
			local b = redis.call('TIME')
			return {a[1] .. '.' .. a[2], b[1] .. '.' .. b[2], a[1]}`, nil).StringSlice()
		if err != nil || got[0] > got[1] || strings.HasSuffix(t.Name(), "embedded") && got[0] != got[1] {
			t.Fatalf("%v, %v", got, err)
		}
		if s, err := strconv.ParseInt(got[2], 10, 64); err != nil || s < before.Unix() || s > time.Now().Unix() {
			t.Errorf("TIME in a script: %s, %v", got[2], err)
		}
	})
}

// TestXAdd_ID: new entries of a stream have the time in their ids, also after the stream was deleted.
func TestXAdd_ID(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		key := redistest.Prefix(t) + "x"
		last := time.Now().UnixMilli()
		ways := maps.Clone(ways)
		ways["transaction"] = inTransaction
		for way, do := range ways {
			for _, args := range [][]any{
				{"XADD", key, "*", "f", "*"}, {"xadd", key, "MAXLEN", "~", 100, "*", "f", "v"}, {"XADD", key, "NOMKSTREAM", "MINID", "0-1", "*", "*", "v"},
			} {
				if err := do(t, rdb, args...); err != nil {
					t.Errorf("%v by a %s: %v", args, way, err)
				}
				newest := rdb.XRevRangeN(ctx, key, "+", "-", 1).Val()
				if len(newest) != 1 {
					t.Fatalf("%v by a %s: no entry", args, way)
				}
				millis, _, _ := strings.Cut(newest[0].ID, "-")
				at, err := strconv.ParseInt(millis, 10, 64)
				if err != nil || at < last || at > time.Now().UnixMilli() {
					t.Errorf("%v by a %s: id %s, want a time from %d on", args, way, newest[0].ID, last)
				}
				last = at
			}
			rdb.Del(ctx, key)
			if id := rdb.XAdd(ctx, &redis.XAddArgs{Stream: key, ID: "5-1", Values: []any{"*", "*"}}).Val(); id != "5-1" {
				t.Errorf("an id of its own became %s", id)
			}
			rdb.Del(ctx, key)
			rdb.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{"f", "v"}})
		}
	})
}

// TestExpiry_Cost: what a command costs does not depend on the number of keys.
func TestExpiry_Cost(t *testing.T) { //nolint:paralleltest // it counts the process's allocations
	rdb := redistest.Embedded(t)
	ctx := await.Context(t)
	const keys, times = 20_000, 300
	fill := "for i = 1, tonumber(ARGV[1]) do redis.call('SET', KEYS[1] .. i, 1, 'PX', 3600000 + i) end"
	if err := rdb.Eval(ctx, fill, []string{"k"}, keys).Err(); err != nil && !strings.Contains(err.Error(), "nil") {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range times {
		rdb.Set(ctx, fmt.Sprint("k", i), "v", time.Hour)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > times*keys {
		t.Errorf("%d commands beside %d keys allocated %d KB each", times, keys, used/times>>10)
	}
}
