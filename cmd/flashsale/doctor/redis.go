package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/internal/breaker"
	"flashsale/inventory"
	"flashsale/order/store"
)

// redis checks Redis: its durability, its speed and its data.
func (d *doctor) redis(ctx context.Context, recorded store.Checkup) {
	s := d.settings
	if s.Redis == config.EmbeddedRedis {
		d.ok("redis", "embedded: its data is lost when flashsale serve stops; every purchase waits for its commit")
		return
	}
	backend.LogRedis(zerolog.Nop()) // the findings contain the same
	rdb, closers, err := backend.OpenRedis(s.Redis, breaker.New(breaker.Config{}), nil)
	if err != nil {
		d.failed("redis", err)
		return
	}
	defer func() {
		for _, done := range closers {
			if err := done(); err != nil {
				d.failed("redis", err)
			}
		}
	}()
	if cause, fix := backend.RedisProblem(ctx, s.Redis, rdb); cause != "" {
		d.fix("redis", config.RedactURL(s.Redis)+": "+cause, fix)
		return
	}
	says, change := backend.Durability(ctx, rdb, s.Redis)
	if !d.advise("redis", says, change) {
		d.ok("redis", "%s", says)
	}
	masters, err := backend.Masters(ctx, rdb)
	if err != nil {
		d.failed("redis", err)
	}
	replicated := false
	for _, m := range masters {
		if d.server(ctx, m, s.ConfirmReplicas) > 0 {
			replicated = true
		}
	}
	if replicated && s.ConfirmReplicas == 0 {
		d.warn("confirm-replicas", "it is 0: a failover to a replica can lose orders that were answered with 202", "set it to 1")
	}
	cause, fix := backend.WritesRefused(ctx, s.Redis, rdb)
	if cause != "" {
		d.fix("redis", config.RedactURL(s.Redis)+": "+cause, fix)
	}
	d.pace(ctx, rdb)
	partitions := cmp.Or(recorded.Partitions, s.Partitions)
	d.clock(ctx, rdb, partitions)
	if d.lineage(ctx, rdb, recorded.Lineage) {
		d.contents(ctx, rdb, partitions, cause == "")
	}
}

// lineage reports whether the data in Redis can belong to the database, which has this lineage; ""
// if it is unknown.
func (d *doctor) lineage(ctx context.Context, rdb redis.UniversalClient, lineage string) bool {
	if lineage == "" {
		return true
	}
	if err := inventory.MatchLineage(ctx, rdb, lineage); err != nil {
		d.failed("redis", backend.LineageError(d.settings, err))
		return false
	}
	return true
}

// server checks the version, the replicas and the memory limit of a Redis server, and returns the number of its
// replicas; 0 if it is unknown.
func (d *doctor) server(ctx context.Context, m backend.Master, confirm int) int {
	text, err := m.Info(ctx, "server", "replication", "memory").Result()
	if err != nil {
		d.warn("redis", "INFO of "+m.Name()+" failed: "+err.Error(), "allow INFO for this Redis user, so that doctor can check the server")
		return 0
	}
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	if version := info["redis_version"]; tooOld(version) {
		d.fix("redis", "the version of "+m.Name()+" is "+version, "use version "+minRedis+" or later")
	}
	replicas, err := strconv.Atoi(info["connected_slaves"])
	answer, known := answering(info)
	if !known {
		answer = replicas
	}
	if err != nil || info["role"] != "master" {
		replicas = 0 // unknown
	} else if answer < confirm {
		d.fix("confirm-replicas", fmt.Sprintf("replicas that must confirm a purchase: %d; connected to %s, and answering: %d", confirm, m.Name(), answer),
			"start the replicas, and restart those that do not answer; or lower confirm-replicas")
	}
	if info["maxmemory"] == "0" {
		d.warn("redis", "maxmemory is not set: "+m.Name()+" grows until the system stops it", "set maxmemory, with maxmemory-policy noeviction")
	}
	return replicas
}

// tooOld reports whether a version of Redis is known and older than minRedis.
func tooOld(version string) bool {
	var have, want [2]int
	for _, v := range []struct {
		text string
		to   *[2]int
	}{{version, &have}, {minRedis, &want}} {
		if _, err := fmt.Sscanf(v.text, "%d.%d", &v.to[0], &v.to[1]); err != nil {
			return false
		}
	}
	return slices.Compare(have[:], want[:]) < 0
}

// answering counts the replicas that have acknowledged what they received within the last
// maxLag seconds; they usually do so every second. known is false if the server does not describe the
// replicas that are connected.
func answering(info map[string]string) (n int, known bool) {
	known = info["connected_slaves"] == "0"
	for name, about := range info {
		var index int
		if _, err := fmt.Sscanf(name, "slave%d", &index); err != nil {
			continue
		}
		_, after, _ := strings.Cut(about, ",lag=")
		lag, _, _ := strings.Cut(after, ",") // newer servers append more
		seconds, err := strconv.Atoi(lag)
		if err != nil {
			continue
		}
		known = true
		if seconds <= maxLag && strings.Contains(about, ",state=online,") {
			n++
		}
	}
	return n, known
}

// pace measures how fast Redis answers.
func (d *doctor) pace(ctx context.Context, rdb redis.UniversalClient) {
	took := make([]time.Duration, pings)
	for i := range took {
		began := time.Now()
		if err := rdb.Ping(ctx).Err(); err != nil {
			d.fix("redis", "it stopped answering: "+err.Error(), "see its log")
			return
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	if median := took[pings/2]; median > slowExchange {
		d.warn("redis", fmt.Sprintf("a round trip takes %v (median of %d)", median.Round(10*time.Microsecond), pings),
			"move Redis closer: each batch of purchases is one round trip")
	} else {
		d.ok("redis", "a round trip takes %v (median of %d)", median.Round(10*time.Microsecond), pings)
	}
}

// clock compares this machine's clock with that of every Redis server that has a partition, as
// the service does.
func (d *doctor) clock(ctx context.Context, rdb redis.UniversalClient, partitions int) {
	clock := inventory.NewClock(rdb, partitions, d.now)
	if err := clock.Measure(ctx); err != nil {
		d.warn("clock", "it cannot be compared with the Redis clock: "+err.Error(), "allow TIME for this user")
		return
	}
	offset := clock.Offset()
	if offset.Abs() > backend.MaxClockSkew {
		d.fix("clock", fmt.Sprintf("the Redis clock minus this machine's is %v: %s", offset.Round(time.Millisecond), backend.ClockEffect), backend.ClockFix)
	} else {
		d.ok("clock", "the Redis clock minus this machine's is %v", offset.Round(time.Microsecond))
	}
}
