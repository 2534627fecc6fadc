// Package server configures the redis-server that a benchmark measures on.
package server

import (
	"context"
	"fmt"
	"time"

	"flashsale/internal/testing/redisserver"
)

// startWithin bounds the wait for the server's first answer.
const startWithin = 10 * time.Second

// Start starts a redis-server in dir, or in a temporary folder if dir is empty.
// appendFsync is Redis's own setting: "always", "everysec" or "no", with the
// append-only file on. If it is empty, nothing is written to disk, so that the
// libraries are measured and not the disk.
func Start(ctx context.Context, dir, appendFsync string) (*redisserver.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	args := []string{"--appendonly", "no"}
	if appendFsync != "" {
		// A rewrite of the append-only file uses a core for a time that grows with the data of
		// all rounds so far; it would affect one phase or another.
		args = []string{"--appendfsync", appendFsync, "--auto-aof-rewrite-percentage", "0"}
	}
	s, err := redisserver.Start(ctx, redisserver.Config{Dir: dir, Args: args})
	if err != nil {
		return nil, fmt.Errorf("%w (make deps installs redis-server)", err)
	}
	return s, nil
}
