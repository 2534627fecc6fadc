package queue

import (
	"embed"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// The scripts, each with its fragments prepended. go-redis sends EVALSHA and falls
// back to EVAL, so a SCRIPT FLUSH or a restart costs one round trip.
var (
	enqueueScript  = script("fragment_put", "enqueue")
	dequeueScript  = script("dequeue")
	ackScript      = script("fragment_counts", "ack")
	extendScript   = script("extend")
	rejectScript   = script("reject")
	getScript      = script("fragment_list", "get")
	statsScript    = script("stats")
	loadScript     = script("load")
	runNowScript   = script("run_now")
	emptyScript    = script("empty")
	wakeScript     = script("wake")
	recallScript   = script("recall")
	passScript     = script("pass")
	pauseScript    = script("pause")
	cancelScript   = script("cancel")
	listScript     = script("fragment_list", "list")
	verifyScript   = script("verify")
	completeScript = script("fragment_put", "fragment_counts", "complete")
)

// script composes a script from the common fragments and the named files. It
// panics if a file is missing, which only a broken build can cause.
func script(files ...string) *redis.Script {
	// A script that works on two queues sets this local to the other queue's keys
	// before it calls a fragment. The global KEYS must not be changed.
	text := "local KEYS = KEYS\n"
	for _, file := range append([]string{"fragment_enqueue", "fragment_common"}, files...) {
		b, err := luaFiles.ReadFile("lua/" + file + ".lua")
		if err != nil {
			panic(fmt.Sprintf("queue: embedded script: %v", err))
		}
		text += string(b) + "\n"
	}
	return redis.NewScript(text)
}

// each sends items to a script, up to 512 per call and in order, and returns one answer for
// each. After a call that failed, the answers from its items on are zero.
func each[T, S any](op string, items []T, from map[byte]S, send func(chunk []T) *redis.Cmd) ([]S, error) {
	out := make([]S, 0, len(items))
	for chunk := range slices.Chunk(items, chunkTasks) {
		answers, err := letters(send(chunk), len(chunk), from)
		if err != nil {
			return append(out, make([]S, len(items)-len(out))...), fmt.Errorf("%s %s: %w", op, countTasks(len(chunk)), err)
		}
		out = append(out, answers...)
	}
	return out, nil
}

// letters reads the reply of a script that returns one letter per task and
// translates each letter by from.
func letters[S any](cmd *redis.Cmd, n int, from map[byte]S) ([]S, error) {
	text, err := cmd.Text()
	if err != nil {
		return nil, err
	}
	if len(text) != n {
		return nil, fmt.Errorf("%w: %d statuses for %s", ErrReply, len(text), countTasks(n))
	}
	out := make([]S, n)
	for i := range n {
		s, ok := from[text[i]]
		if !ok {
			return nil, fmt.Errorf("%w: status %q", ErrReply, text[i])
		}
		out[i] = s
	}
	return out, nil
}

// numbers reads the reply of a script that returns n integers.
func numbers(cmd *redis.Cmd, n int) ([]int64, error) {
	reply, err := cmd.Int64Slice()
	if err == nil && len(reply) != n {
		err = fmt.Errorf("%w: %d fields", ErrReply, len(reply))
	}
	return reply, err
}

// countTasks is a number of tasks for an error.
func countTasks(n int) string {
	if n == 1 {
		return "1 task"
	}
	return fmt.Sprintf("%d tasks", n)
}
