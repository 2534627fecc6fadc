//go:build chaos && unix

package chaos

import (
	"bufio"
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/disktest"
)

func init() {
	var disk *disktest.Disk
	onDisk := func(t *testing.T) []string {
		disk = disktest.New(t, redisDisk)
		return []string{"--dir", disk.Path()}
	}
	register(fault{
		ID: "F13a", Name: "Redis disk full, synced always", Lasts: 8 * time.Second, Redis: onDisk, Shuts: true,
		Strike: func(ctx context.Context, r *run) { fillSyncedRedis(ctx, r, disk) }, Expect: expectRefusals,
	})
	register(fault{
		ID: "F13b", Name: "Redis disk full, synced each second", Lasts: 8 * time.Second, Redis: onDisk, Shuts: true,
		RedisArgs: []string{"--appendfsync", "everysec"},
		// Redis notices free space within a second.
		RecoversIn: 3 * time.Second,
		Strike:     func(ctx context.Context, r *run) { fillRedisDisk(ctx, r, disk) }, Expect: expectRefusals,
	})
	register(fault{
		ID: "F13c", Name: "Redis memory full", Lasts: 6 * time.Second, Shuts: true,
		Strike: fillRedisMemory, Expect: expectRefusals,
	})
}

const (
	// redisDisk is enough for the append-only file of the largest sale, in bytes.
	redisDisk = 128 << 20
	// fullFor is how long there is no space.
	fullFor = 3 * time.Second
)

// fillSyncedRedis fills the disk of a Redis that syncs each write. It exits instead of
// answering a command that it could not write. A supervisor would restart it in vain until
// there is space.
func fillSyncedRedis(ctx context.Context, r *run, disk *disktest.Disk) {
	s := r.measure("disk full")
	disk.Fill()
	r.struck("Redis disk full")
	r.eventually(ctx, "Redis ends", func() bool { return r.shop.rdb.Ping(ctx).Err() != nil })
	if err := r.shop.redis.Kill(); err != nil {
		r.t.Fatalf("reap Redis: %v", err)
	}
	if err := r.shop.redis.Start(); err != nil {
		r.t.Logf("on the full disk: %v", err)
	}
	r.lasts(ctx, fullFor)
	disk.Free()
	if err := r.shop.redis.Kill(); err != nil {
		r.t.Fatalf("reap Redis: %v", err)
	}
	if err := r.shop.redis.Start(); err != nil {
		r.t.Fatalf("start Redis: %v", err)
	}
	r.end(s)
	r.over()
	r.recovered(ctx)
	// A script truncated in the append-only file may only be detected at the next start, when
	// more data follows it.
	r.answers(ctx, buyersAtOnce)
	if err := r.shop.redis.Kill(); err != nil {
		r.t.Fatalf("kill Redis: %v", err)
	}
	if err := r.shop.redis.Start(); err != nil {
		r.t.Fatalf("start Redis: %v", err)
	}
	r.struck("Redis restarted")
	r.over()
	r.recovered(ctx)
}

// fillRedisDisk fills the disk of a Redis that syncs its append-only file periodically. It
// refuses writes until there is space.
func fillRedisDisk(ctx context.Context, r *run, disk *disktest.Disk) {
	s := r.measure("disk full")
	disk.Fill()
	r.eventually(ctx, "Redis fails to write its log", func() bool {
		return r.redisInfo(ctx, "persistence", "aof_last_write_status") == "err"
	})
	r.struck("Redis disk full")
	r.lasts(ctx, fullFor)
	disk.Free()
	r.end(s)
	r.over()
	r.recovered(ctx)
}

// fillRedisMemory limits Redis to half of the memory that it uses for a while, so that freeing
// some keys makes no space.
func fillRedisMemory(ctx context.Context, r *run) {
	used, err := strconv.ParseInt(r.redisInfo(ctx, "memory", "used_memory"), 10, 64)
	if err != nil {
		r.t.Fatalf("memory of Redis: %v", err)
	}
	s := r.measure("memory full")
	if err := r.shop.rdb.ConfigSet(ctx, "maxmemory", strconv.FormatInt(used/2, 10)).Err(); err != nil {
		r.t.Fatalf("bound the memory of Redis: %v", err)
	}
	r.eventually(ctx, "Redis refuses because its memory is full", func() bool {
		return r.redisInfo(ctx, "errorstats", "errorstat_OOM") != ""
	})
	r.struck("Redis memory full")
	r.lasts(ctx, fullFor)
	if err := r.shop.rdb.ConfigSet(ctx, "maxmemory", "0").Err(); err != nil {
		r.t.Fatalf("free the memory of Redis: %v", err)
	}
	r.end(s)
	r.over()
	r.recovered(ctx)
}

// redisInfo returns a field of a section of INFO; empty if the field is missing or Redis does
// not answer.
func (r *run) redisInfo(ctx context.Context, section, field string) string {
	info, err := r.shop.rdb.Info(ctx, section).Result()
	if err != nil {
		return ""
	}
	for lines := bufio.NewScanner(strings.NewReader(info)); lines.Scan(); {
		if v, ok := strings.CutPrefix(lines.Text(), field+":"); ok {
			return v
		}
	}
	return ""
}

// expectRefusals is like expectBounds, and also requires that some purchases were refused.
func expectRefusals(ctx context.Context, r *run) {
	expectBounds(ctx, r)
	for _, s := range r.spans {
		if s.refused == 0 {
			r.voidf("%s: no purchase was refused", s.name)
		}
	}
}
