package embedded_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// scriptReplies are scripts with their replies, in the order in which they run on one key.
func scriptReplies(key string) []scriptReply {
	return []scriptReply{
		{"return 1", int64(1), ""},
		{"return 3.99", int64(3), ""},
		{"return -3.99", int64(-3), ""},
		{"return 'text'", "text", ""},
		{"return ''", "", ""},
		{"return true", int64(1), ""},
		{"return false", nil, ""},
		{"return nil", nil, ""},
		{"local x = 1", nil, ""},
		{"return {1, 'two', {3, false}, true}", []any{int64(1), "two", []any{int64(3), nil}, int64(1)}, ""},
		{"return {1, nil, 3}", []any{int64(1)}, ""},
		{"return {}", []any{}, ""},
		{"return {ok = 'FINE'}", "FINE", ""},
		{"return {err = 'MINE of another kind'}", nil, "MINE"},
		{"return redis.error_reply('MINE too')", nil, "MINE"},
		{"return {KEYS[1], ARGV[1], ARGV[2], #KEYS, #ARGV}", []any{key, "a", "b\r\n\x00c", int64(1), int64(2)}, ""},
		{"return redis.call('SET', KEYS[1], ARGV[2])", "OK", ""},
		{"return redis.call('GET', KEYS[1])", "b\r\n\x00c", ""},
		{"return redis.call('GET', KEYS[1] .. 'none')", nil, ""},
		{"return redis.call('GET', KEYS[1] .. 'none') == false", int64(1), ""},
		{"return redis.call('STRLEN', KEYS[1])", int64(5), ""},
		{"return redis.call('SET', KEYS[1], 12, 'PX', 60000)['ok']", "OK", ""},
		{"return redis.call('GET', KEYS[1])", "12", ""},
		{"return redis.call('DEL', KEYS[1])", int64(1), ""},
		{"redis.call('RPUSH', KEYS[1], 'x', 7); return redis.call('LRANGE', KEYS[1], 0, -1)", []any{"x", "7"}, ""},
		{"return redis.call('HMGET', KEYS[1] .. 'h', 'a', 'b')", []any{nil, nil}, ""},
		{"return redis.call('HGET', KEYS[1], 'f')", nil, "WRONGTYPE"},
		{"return redis.pcall('HGET', KEYS[1], 'f')", nil, "WRONGTYPE"},
		{"return redis.pcall('HGET', KEYS[1], 'f').err ~= nil", int64(1), ""},
		{"local ok, e = pcall(redis.call, 'HGET', KEYS[1], 'f'); return {ok, string.sub(e.err or e, 1, 9)}", []any{nil, "WRONGTYPE"}, ""},
		{"redis.call('DEL', KEYS[1]); return redis.call('EXISTS', KEYS[1])", int64(0), ""},
		{"return redis.call('NOSUCH')", nil, "ERR"},
		{"return redis.call()", nil, "ERR"},
		{"return redis.call('GET', {})", nil, "ERR"},
		{"error('no number of its own')", nil, "ERR"},
		{"error({err = 'MINE again'})", nil, "MINE"},
		{"return nonexistent", nil, "ERR"},
		{"created = 1", nil, "ERR"},
		{"return created", nil, "ERR"},
		{"return 1 +", nil, "ERR"},
		{"return math.floor(2.5) + tonumber('3')", int64(5), ""},
		{"return string.format('%d %s', 5, string.rep('ab', 2))", "5 abab", ""},
		{"local t = {}; for i = 1, 300 do t[i] = i end; return #t", int64(300), ""},
		{"return select('#', unpack({1, 2, 3}))", int64(3), ""},
		{"return table.concat({'a', 'b'}, ',')", "a,b", ""},
		{"return cjson.encode({1, 2})", "[1,2]", ""},                                 // left to miniredis
		{"return redis.sha1hex('')", "da39a3ee5e6b4b0d3255bfef95601890afd80709", ""}, // so is this
	}
}

type scriptReply struct {
	script string
	want   any    // the reply
	fails  string // or the first word of an error
}

// TestScripts_Replies: each script gets the same reply on both engines, by its text and by its hash.
func TestScripts_Replies(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for name, run := range map[string]func(script, key string) *redis.Cmd{
			"EVAL": func(script, key string) *redis.Cmd {
				return rdb.Eval(await.Context(t), script, []string{key}, "a", "b\r\n\x00c")
			},
			"EVALSHA": func(script, key string) *redis.Cmd {
				return redis.NewScript(script).Run(await.Context(t), rdb, []string{key}, "a", "b\r\n\x00c")
			},
		} {
			key := redistest.Prefix(t) + name
			for _, c := range scriptReplies(key) {
				got, err := run(c.script, key).Result()
				switch {
				case c.fails != "":
					if err == nil || !strings.HasPrefix(err.Error(), c.fails) {
						t.Errorf("%s %s: %v, %v, want an error that begins with %s", name, c.script, got, err, c.fails)
					}
				case c.want == nil:
					if !errors.Is(err, redis.Nil) {
						t.Errorf("%s %s: %v, %v, want nil", name, c.script, got, err)
					}
				case err != nil || !reflect.DeepEqual(got, c.want):
					t.Errorf("%s %s: %#v, %v, want %#v", name, c.script, got, err, c.want)
				}
			}
		}
	})
}

// TestScripts_Refused: scripts cannot wait, or change the connection that all of them share.
func TestScripts_Refused(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	for _, command := range []string{"'BLPOP', KEYS[1], 0", "'select', 1", "'XREAD', 'BLOCK', 0, 'STREAMS', KEYS[1], '$'", "'MULTI'", "'QUIT'"} {
		if err := rdb.Eval(await.Context(t), "return redis.call("+command+")", []string{"k"}).Err(); err == nil || !strings.HasPrefix(err.Error(), "ERR") {
			t.Errorf("%s: %v", command, err)
		}
	}
	if err := rdb.Eval(await.Context(t), "return redis.call('SET', KEYS[1], 1)", []string{"k"}).Err(); err != nil {
		t.Error(err)
	}
	if n, err := rdb.Get(await.Context(t), "k").Int(); err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
}

// TestScripts_Known: scripts are known by their hash after EVAL and SCRIPT LOAD, until
// SCRIPT FLUSH.
func TestScripts_Known(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	ctx := await.Context(t)
	evaluated, loaded := redis.NewScript("return 1"), redis.NewScript("return 2")
	for _, s := range []*redis.Script{evaluated, loaded} {
		if err := s.EvalSha(ctx, rdb, nil).Err(); !redis.HasErrorPrefix(err, "NOSCRIPT") {
			t.Errorf("before: %v, want NOSCRIPT", err)
		}
	}
	if err := evaluated.Eval(ctx, rdb, nil).Err(); err != nil {
		t.Fatal(err)
	}
	if err := loaded.Load(ctx, rdb).Err(); err != nil {
		t.Fatal(err)
	}
	for i, s := range []*redis.Script{evaluated, loaded} {
		if n, err := s.EvalSha(ctx, rdb, nil).Int(); err != nil || n != i+1 {
			t.Errorf("script %d: %d, %v", i+1, n, err)
		}
		if known, err := s.Exists(ctx, rdb).Result(); err != nil || !known[0] {
			t.Errorf("script %d: exists %v, %v", i+1, known, err)
		}
	}
	if err := rdb.ScriptFlush(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*redis.Script{evaluated, loaded} {
		if err := s.EvalSha(ctx, rdb, nil).Err(); !redis.HasErrorPrefix(err, "NOSCRIPT") {
			t.Errorf("after the flush: %v, want NOSCRIPT", err)
		}
	}
	for _, args := range [][]any{{"EVAL", "return 1"}, {"EVAL", "return 1", "x"}, {"EVAL", "return 1", -1}, {"EVAL", "return 1", 2, "k"}, {"EVALSHA"}, {"SCRIPT"}} {
		if err := rdb.Do(ctx, args...).Err(); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

// TestScripts_Transaction: scripts in a transaction run with it.
func TestScripts_Transaction(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, key := await.Context(t), redistest.Prefix(t)+"n"
		script := redis.NewScript("return redis.call('INCR', KEYS[1])")
		if err := script.Load(ctx, rdb).Err(); err != nil {
			t.Fatal(err)
		}
		conn := rdb.Conn()
		defer conn.Close()
		for _, end := range []string{"EXEC", "DISCARD", "EXEC"} {
			var replies []string
			for _, args := range [][]any{{"MULTI"}, {"EVALSHA", script.Hash(), 1, key}, {"EVAL", "return redis.call('INCR', KEYS[1])", 1, key}, {end}} {
				v, err := conn.Do(ctx, args...).Result()
				if err != nil {
					t.Fatalf("%v: %v", args, err)
				}
				replies = append(replies, fmt.Sprint(v))
			}
			if replies[1] != "QUEUED" || replies[2] != "QUEUED" {
				t.Errorf("replies in a transaction that ends with %s: %q", end, replies)
			}
		}
		if n, err := conn.EvalSha(ctx, script.Hash(), []string{key}).Int(); err != nil || n != 5 {
			t.Errorf("%d, %v, want 5: four increments in transactions and this one", n, err)
		}
	})
}

// TestScripts_Wake: a list that a script fills wakes a client that waits for it.
func TestScripts_Wake(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	ctx := await.Context(t)
	got := make(chan error, 1)
	go func() {
		v, err := rdb.BRPop(ctx, 0, "list").Result()
		if err == nil && v[1] != "x" {
			err = fmt.Errorf("got %q", v)
		}
		got <- err
	}()
	if err := rdb.Eval(ctx, "return redis.call('RPUSH', KEYS[1], 'x')", []string{"list"}).Err(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}
