package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// reading is the state of all counters at one moment.
type reading struct {
	at        time.Time
	clientCPU time.Duration // of this process
	redisCPU  time.Duration // of the redis-server
	calls     int64         // commands Redis ran, those inside scripts included
}

// usage is what was used between two readings.
type usage struct {
	elapsed   time.Duration
	clientCPU time.Duration
	redisCPU  time.Duration
	calls     int64
}

func (r reading) since(earlier reading) usage {
	return usage{
		elapsed:   r.at.Sub(earlier.at),
		clientCPU: r.clientCPU - earlier.clientCPU,
		redisCPU:  r.redisCPU - earlier.redisCPU,
		calls:     r.calls - earlier.calls,
	}
}

// read takes a reading, with one call of INFO that is not counted.
func read(ctx context.Context, admin *redis.Client) (reading, error) {
	info, err := admin.InfoMap(ctx, "cpu", "commandstats").Result()
	if err != nil {
		return reading{}, fmt.Errorf("info: %w", err)
	}
	var r reading
	for _, name := range []string{"used_cpu_sys", "used_cpu_user"} {
		seconds, err := strconv.ParseFloat(info["CPU"][name], 64)
		if err != nil {
			return reading{}, fmt.Errorf("info cpu %s: %w", name, err)
		}
		r.redisCPU += time.Duration(seconds * float64(time.Second))
	}
	for name, stats := range info["Commandstats"] {
		if name == "cmdstat_info" {
			continue
		}
		first, _, _ := strings.Cut(stats, ",")
		n, err := strconv.ParseInt(strings.TrimPrefix(first, "calls="), 10, 64)
		if err != nil {
			return reading{}, fmt.Errorf("info commandstats %s: %w", name, err)
		}
		r.calls += n
	}
	if r.clientCPU, err = ownCPU(); err != nil {
		return reading{}, err
	}
	r.at = time.Now()
	return r, nil
}

// ownCPU is the CPU time of this process so far.
func ownCPU() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
