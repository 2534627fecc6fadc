package redistest

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
)

func TestServer_Replica(t *testing.T) {
	t.Parallel()
	ctx, master := await.Context(t), Real(t)
	rdb := client(t, master.Addr())
	if err := rdb.Set(ctx, "before", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	// Delay the copy: a replica that is returned too early has no data.
	if err := rdb.ConfigSet(ctx, "repl-diskless-sync-delay", "1").Err(); err != nil {
		t.Fatal(err)
	}
	replica := client(t, master.Replica(t).Addr())
	if got, err := replica.Get(ctx, "before").Result(); err != nil || got != "1" {
		t.Errorf("the replica has %q, %v of what was there before it", got, err)
	}
	if err := rdb.Set(ctx, "after", "2", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := rdb.Wait(ctx, 1, patience).Result(); err != nil || n != 1 {
		t.Fatalf("WAIT: %d, %v", n, err)
	}
	if got, err := replica.Get(ctx, "after").Result(); err != nil || got != "2" {
		t.Errorf("the replica has %q, %v after WAIT confirmed the copy", got, err)
	}
	if err := replica.Set(ctx, "k", "v", 0).Err(); err == nil {
		t.Error("the replica took a write")
	}
	if err := master.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := replica.ReplicaOf(ctx, "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	if err := replica.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Errorf("promoted: %v", err)
	}
}

func TestServer_Pause(t *testing.T) {
	t.Parallel()
	ctx, s := await.Context(t), Real(t)
	rdb := redis.NewClient(Options(s.Addr()))
	closeAtEnd(t, rdb)
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	// The kernel accepts the connection, but the server does not answer.
	brief, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := rdb.Set(brief, "k", "v", 0).Err(); err == nil {
		t.Error("a frozen server answered")
	}
	if err := s.Continue(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Set(ctx, "k", "w", 0).Err(); err != nil {
		t.Errorf("after Continue: %v", err)
	}
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if s.Pause() == nil || s.Continue() == nil {
		t.Error("a server that is not running was paused")
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if got, err := rdb.Get(ctx, "k").Result(); err != nil || got != "w" {
		t.Errorf("after the restart: %q, %v", got, err)
	}
}
