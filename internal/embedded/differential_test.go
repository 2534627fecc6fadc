package embedded_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

var differentialCommands = flag.Int("commands", 3_000, "how many random commands TestDifferential runs")

// TestDifferential: random commands have the same replies and leave the same keys on both engines. Keys with a short
// time to live expire before the next command.
func TestDifferential(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	g := &commands{Rand: rand.New(rand.NewPCG(seed, 0)), prefix: redistest.Prefix(t)}
	ctx := t.Context()
	engines := []*redis.Client{olderServer(t), redistest.Redis(t)}
	var history []string
	for i := range *differentialCommands {
		args, short := g.next()
		script := g.IntN(3) == 0
		var got [2]string
		for e, rdb := range engines {
			if script {
				got[e] = replyText(rdb.Eval(ctx, "return redis.call(unpack(ARGV))", nil, args...).Result())
			} else {
				got[e] = replyText(rdb.Do(ctx, args...).Result())
			}
			if args[0] == "XADD" && strings.Contains(got[e], "-") && !strings.HasPrefix(got[e], "WRONG") {
				got[e] = "an id"
			}
		}
		history = append(history, brief(fmt.Sprint(args...)), fmt.Sprint("  script ", script))
		if short {
			for _, rdb := range engines {
				await.True(t, "the key has expired", func() bool {
					ttl := rdb.PTTL(ctx, args[1].(string)).Val()
					return ttl < 0 || ttl > time.Minute
				})
			}
		}
		if i%20 == 0 {
			for e, rdb := range engines {
				got[e] += " keys: " + g.state(t, rdb)
			}
		}
		if got[0] != got[1] {
			t.Fatalf("command %d: embedded %s\nredis    %s\nafter\n%s", i, brief(got[0]), brief(got[1]), strings.Join(history[max(0, len(history)-40):], "\n"))
		}
	}
}

// long matches what a failure need not show in full.
var long = regexp.MustCompile(`(x{10}|(12){10}|(-7){10}|(\\r\\n){10}|(\r\n){10}|\x00{10}|(\\x00){10})+`)

func brief(text string) string { return fmt.Sprintf("%q", long.ReplaceAllString(text, "…")) }

// replyText returns a reply as text, and of an error only the first word.
func replyText(reply any, err error) string {
	if err != nil && !errors.Is(err, redis.Nil) {
		word, _, _ := strings.Cut(err.Error(), " ")
		return word
	}
	return strings.NewReplacer("[", "", "]", "").Replace(fmt.Sprint(reply)) // RESP3 nests pairs
}

// commands are random commands on a few keys.
type commands struct {
	*rand.Rand

	prefix string
}

func (g *commands) pick(list ...string) string { return list[g.IntN(len(list))] }
func (g *commands) key(kind string) string     { return g.prefix + kind + g.pick("1", "2", "3") }
func (g *commands) text() string {
	return strings.Repeat(g.pick("x", "12", "-7", "\r\n"), 1+g.IntN(2)*g.IntN(3000))
}

// next returns a command. short means that it may give its key a time to live of some milliseconds.
func (g *commands) next() (args []any, short bool) {
	var command string
	n := g.IntN(40)
	kind := "string"
	switch {
	case n >= 3 && n <= 5 || n == 12 || n == 16 || n >= 37:
		kind = g.pick("string", "number", "hash", "zset", "list", "set", "stream")
	case n == 17:
		kind = "number"
	case n >= 18 && n <= 22:
		kind = "hash"
	case n >= 23 && n <= 31:
		kind = "zset"
	case n == 32 || n == 33:
		kind = "list"
	case n == 34 || n == 35:
		kind = "set"
	case n == 36:
		kind = "stream"
	}
	k, k2 := g.key(kind), g.key(kind)
	switch n {
	case 0, 1, 2:
		args = []any{"SET", k, g.text()}
		if o := g.pick("", "NX", "XX", "GET", "KEEPTTL"); o != "" {
			args = append(args, o)
		}
		option, at, brief := g.deadline()
		if g.IntN(2) == 0 && args[len(args)-1] != "KEEPTTL" {
			return append(args, option, at), brief
		}
		return args, false
	case 3, 4, 5:
		option, at, brief := g.deadline()
		args = []any{map[string]string{"EX": "EXPIRE", "PX": "PEXPIRE", "EXAT": "EXPIREAT", "PXAT": "PEXPIREAT"}[option], k, at}
		if o := g.pick("", "NX", "XX"); o != "" {
			args = append(args, o)
		}
		return args, brief
	case 6:
		option, at, brief := g.deadline()
		if at <= 0 {
			at = 9000
		}
		return []any{"GETEX", k, option, at}, brief
	case 7:
		if g.IntN(2) == 0 {
			return []any{"PSETEX", k, 1 + g.IntN(3), g.text()}, true
		}
		return []any{"SETEX", k, 3600 + 1000*g.IntN(5), g.text()}, false
	case 8, 9:
		return []any{"APPEND", k, g.text()}, false
	case 10:
		return []any{"SETRANGE", k, g.IntN(5000), g.text()}, false
	case 11:
		return []any{"GETRANGE", k, g.IntN(5000), g.IntN(6000) - 1000}, false
	case 12:
		return []any{g.pick("RENAME", "RENAMENX"), k, k2}, false
	case 13:
		return []any{g.pick("MSET", "MSETNX"), k, g.text(), k2, g.text()}, false
	case 14:
		return []any{"MGET", k, k2}, false
	case 15:
		return []any{g.pick("SETNX", "GETSET"), k, g.text()}, false
	case 16:
		return []any{g.pick("DEL", "UNLINK", "EXISTS"), k, k2}, false
	case 17:
		return []any{g.pick("SET", "INCRBY", "DECRBY"), k, g.IntN(9)}, false
	case 18, 19:
		return []any{g.pick("HSET", "HSETNX"), k, g.pick("f", "g", "h"), g.text()}, false
	case 20:
		return []any{g.pick("HDEL", "HMGET"), k, g.pick("f", "g", "h"), "g"}, false
	case 21:
		return []any{"HINCRBY", k, g.pick("f", "n"), g.IntN(9)}, false
	case 22:
		return []any{g.pick("HGET", "HEXISTS", "HSTRLEN"), k, g.pick("f", "g", "h")}, false
	case 23, 24:
		return []any{"ZADD", k, g.IntN(9), g.pick("m", "n", "o", "p"), float64(g.IntN(9)) / 4, "q"}, false
	case 25:
		return []any{"ZREM", k, g.pick("m", "n", "o", "p"), "q"}, false
	case 26:
		return []any{g.pick("ZRANGE", "ZREVRANGE"), k, g.IntN(3), g.IntN(6) - 3, "WITHSCORES"}, false
	case 27:
		return []any{"ZRANGEBYSCORE", k, g.pick("-inf", "(2", "1"), g.pick("+inf", "(5", "4"), "WITHSCORES", "LIMIT", g.IntN(2), g.IntN(4)}, false
	case 28:
		return []any{"ZREVRANGEBYSCORE", k, g.pick("+inf", "(5", "4"), g.pick("-inf", "(2", "1"), "LIMIT", 0, 1}, false
	case 29:
		return []any{"ZCOUNT", k, g.pick("-inf", "(2", "1"), g.pick("+inf", "(5", "4")}, false
	case 30:
		return []any{g.pick("ZSCORE", "ZRANK"), k, g.pick("m", "n", "o", "p")}, false
	case 31:
		return []any{"ZREMRANGEBYRANK", k, g.IntN(2), g.IntN(3)}, false
	case 32:
		return []any{g.pick("RPUSH", "LPUSH"), k, g.text(), "y"}, false
	case 33:
		return []any{"LRANGE", k, g.IntN(3), g.IntN(6) - 3}, false
	case 34:
		return []any{"SADD", k, g.pick("m", "n", "o"), "p"}, false
	case 35:
		return []any{g.pick("SISMEMBER", "SREM"), k, g.pick("m", "n", "o")}, false
	case 36:
		return []any{"XADD", k, "*", "f", g.text()}, false
	case 37:
		command = g.pick("PERSIST", "TYPE", "GETDEL", "GET")
	case 38:
		command = g.pick("STRLEN", "HLEN", "ZCARD", "LLEN", "SCARD")
	default:
		command = g.pick("LPOP", "RPOP", "GET", "INCR")
		if command == "INCR" && kind == "string" {
			k = g.key("number") // what APPEND makes of a number, such as 012, is one for miniredis only
		}
	}
	return []any{command, k}, false
}

// deadline returns an option of SET with its time: some milliseconds, hours, or past.
func (g *commands) deadline() (option string, at int64, short bool) {
	now := time.Now()
	switch g.IntN(12) {
	case 0, 1:
		return "PX", 1 + g.Int64N(3), true
	case 2:
		return "PXAT", now.UnixMilli() + g.Int64N(4), true
	case 3:
		return g.pick("PX", "EX"), -g.Int64N(2), false
	case 4:
		return g.pick("PXAT", "EXAT"), 1 + g.Int64N(2), true
	case 5, 6:
		return "EX", 3600 + 1000*g.Int64N(5), false
	case 7, 8:
		return "PX", 3_600_000 + 1_000_000*g.Int64N(5), false
	case 9, 10:
		return "EXAT", now.Unix() + 3600 + 1000*g.Int64N(5), false
	default:
		return "PXAT", now.UnixMilli() + 3_600_000 + 1_000_000*g.Int64N(5), false
	}
}

// state describes all keys.
func (g *commands) state(t *testing.T, rdb *redis.Client) string {
	ctx := await.Context(t)
	keys := rdb.Keys(ctx, g.prefix+"*").Val()
	slices.Sort(keys)
	var b strings.Builder
	for _, key := range keys {
		kind := rdb.Type(ctx, key).Val()
		var value any
		switch kind {
		case "string":
			value = rdb.Get(ctx, key).Val()
		case "hash":
			value = rdb.HGetAll(ctx, key).Val()
		case "zset":
			value = rdb.ZRangeWithScores(ctx, key, 0, -1).Val()
		case "list":
			value = rdb.LRange(ctx, key, 0, -1).Val()
		case "set":
			members := rdb.SMembers(ctx, key).Val()
			slices.Sort(members)
			value = members
		case "stream":
			value = rdb.XLen(ctx, key).Val()
		}
		fmt.Fprintf(&b, "%s %s %q, ", key, kind, fmt.Sprint(value))
		// Deadlines are a thousand seconds apart.
		left := rdb.PTTL(ctx, key).Val()
		fmt.Fprintf(&b, "%d; ", (left+500*time.Second)/(1000*time.Second))
	}
	return b.String()
}
