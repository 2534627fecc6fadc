package queue

import (
	"context"
	"embed"
	"fmt"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// The scripts, each with the fragments in front of it. go-redis sends EVALSHA
// and falls back to EVAL, so a SCRIPT FLUSH or a restart costs one round trip.
var (
	enqueueScript  = script("fragment_put", "enqueue")
	dequeueScript  = script("dequeue")
	ackScript      = script("fragment_counts", "ack")
	extendScript   = script("extend")
	rejectScript   = script("reject")
	getScript      = script("get")
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
	deadScript     = script("fragment_list", "dead_after")
	verifyScript   = script("verify")
	completeScript = script("fragment_put", "fragment_counts", "complete")

	// These two work on a Registry and not on a queue's keys.
	workersBeatScript = script("workers_beat")
	workersListScript = script("workers_list")
)

// script composes one script's text from the common fragments and the files
// named. It panics when a file is missing, which
// only a broken build can cause.
func script(files ...string) *redis.Script {
	// A local of that name, so that a script which works on two queues can have
	// the fragments work on the other's keys: the global one is not to be changed.
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

func (q *Queue) run(ctx context.Context, s *redis.Script, args ...any) *redis.Cmd {
	return s.Run(ctx, q.rdb, q.keys.all, args...)
}

// letters runs a script that answers one letter per task, and checks that it
// did. Each letter is translated by from.
func letters[S any](cmd *redis.Cmd, n int, from map[byte]S) ([]S, error) {
	text, err := cmd.Text()
	if err != nil {
		return nil, err
	}
	if len(text) != n {
		return nil, fmt.Errorf("%w: %d statuses for %d tasks", ErrReply, len(text), n)
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
