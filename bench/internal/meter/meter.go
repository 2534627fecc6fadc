// Package meter reads the costs of a phase: CPU time, memory and commands.
package meter

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// Reading is the state of all counters at one moment.
type Reading struct {
	At        time.Time
	ClientCPU time.Duration // of this process
	RedisCPU  time.Duration // of the redis-server
	Calls     int64         // commands Redis ran, those inside scripts included
}

// Usage is the difference of two readings.
type Usage struct {
	Elapsed   time.Duration
	ClientCPU time.Duration
	RedisCPU  time.Duration
	Calls     int64
}

// Since is the usage since an earlier reading.
func (r Reading) Since(earlier Reading) Usage {
	return Usage{
		Elapsed:   r.At.Sub(earlier.At),
		ClientCPU: r.ClientCPU - earlier.ClientCPU,
		RedisCPU:  r.RedisCPU - earlier.RedisCPU,
		Calls:     r.Calls - earlier.Calls,
	}
}

// Read takes a reading, with one call of INFO that is not counted.
func Read(ctx context.Context, admin *redis.Client) (Reading, error) {
	info, err := admin.InfoMap(ctx, "cpu", "commandstats").Result()
	if err != nil {
		return Reading{}, fmt.Errorf("info: %w", err)
	}
	var r Reading
	for _, name := range []string{"used_cpu_sys", "used_cpu_user"} {
		seconds, err := strconv.ParseFloat(info["CPU"][name], 64)
		if err != nil {
			return Reading{}, fmt.Errorf("info cpu %s: %w", name, err)
		}
		r.RedisCPU += time.Duration(seconds * float64(time.Second))
	}
	for name, stats := range info["Commandstats"] {
		if name == "cmdstat_info" {
			continue
		}
		first, _, _ := strings.Cut(stats, ",")
		n, err := strconv.ParseInt(strings.TrimPrefix(first, "calls="), 10, 64)
		if err != nil {
			return Reading{}, fmt.Errorf("info commandstats %s: %w", name, err)
		}
		r.Calls += n
	}
	if r.ClientCPU, err = ownCPU(); err != nil {
		return Reading{}, err
	}
	r.At = time.Now()
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

// UsedMemory is how many bytes Redis has allocated, by its own count.
func UsedMemory(ctx context.Context, admin *redis.Client) (int64, error) {
	info, err := admin.InfoMap(ctx, "memory").Result()
	if err != nil {
		return 0, fmt.Errorf("info: %w", err)
	}
	n, err := strconv.ParseInt(info["Memory"]["used_memory"], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("info memory used_memory: %w", err)
	}
	return n, nil
}
