//go:build chaos && unix

package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func init() {
	register(fault{
		ID: "F4", Name: "Redis killed, its log's tail lost", Shuts: true, MayLoseAccepted: true,
		Expect: noDeadLetters,
		Strike: func(ctx context.Context, r *run) {
			for blow := range 3 {
				r.answers(ctx, r.plan.Moments[blow])
				if blow%2 == 0 {
					r.pileUp(ctx)
				}
				folder := r.shop.dataOfRedis(ctx)
				r.redisAway(ctx, func() {
					lost, of, err := cutTail(folder, int64(1+r.plan.Numbers[blow]%4096))
					if err != nil {
						r.t.Fatal(err)
					}
					r.notef("cut %d of %d bytes", lost, of)
				})
				r.recovered(ctx)
			}
		},
	})
}

// dataOfRedis is the folder of Redis's append-only file.
func (s *shop) dataOfRedis(ctx context.Context) string {
	s.t.Helper()
	v, err := s.rdb.ConfigGet(ctx, "dir").Result()
	if err != nil {
		s.t.Fatalf("ask Redis for its folder: %v", err)
	}
	return filepath.Join(v["dir"], "appendonlydir")
}

// cutTail removes the last n bytes of the newest part of the append-only file, like a power
// failure before a sync, and returns how many there were.
func cutTail(folder string, n int64) (lost, of int64, err error) {
	path, err := newestPart(folder)
	if err != nil {
		return 0, 0, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, fmt.Errorf("cut the log: %w", err)
	}
	lost = min(n, info.Size())
	if err := os.Truncate(path, info.Size()-lost); err != nil {
		return 0, 0, fmt.Errorf("cut the log: %w", err)
	}
	return lost, info.Size(), nil
}

// newestPart reads the manifest of the append-only file: one line for each file, "file NAME seq
// N type T". Redis appends to the last one of type i.
func newestPart(folder string) (string, error) {
	lists, err := filepath.Glob(filepath.Join(folder, "*.manifest"))
	if err != nil || len(lists) != 1 {
		return "", fmt.Errorf("find the log's manifest in %s: %q, %w", folder, lists, err)
	}
	text, err := os.ReadFile(lists[0])
	if err != nil {
		return "", fmt.Errorf("read the log's manifest: %w", err)
	}
	name := ""
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) == 6 && f[0] == "file" && f[4] == "type" && f[5] == "i" {
			name = f[1]
		}
	}
	if name == "" {
		return "", fmt.Errorf("the log's manifest names no part that is appended to: %s", text)
	}
	return filepath.Join(folder, name), nil
}

// TestPlan_NewestPart reads a manifest in the format of Redis 7.
func TestPlan_NewestPart(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	const manifest = "file appendonly.aof.2.base.rdb seq 2 type b\nfile appendonly.aof.2.incr.aof seq 2 type i\nfile appendonly.aof.3.incr.aof seq 3 type i\n"
	part := filepath.Join(folder, "appendonly.aof.3.incr.aof")
	if err := os.WriteFile(filepath.Join(folder, "appendonly.aof.manifest"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(part, []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	lost, of, err := cutTail(folder, 4)
	if err != nil || lost != 4 || of != 10 {
		t.Fatalf("cut %d of %d, %v", lost, of, err)
	}
	if got, err := os.ReadFile(part); err != nil || string(got) != "012345" {
		t.Errorf("left %q, %v", got, err)
	}
}
