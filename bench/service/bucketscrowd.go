package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"flashsale/bench/internal/load"
	"flashsale/handler/auth"
	"flashsale/internal/pause"
	"flashsale/internal/testing/repo"
)

const (
	// crowdBuckets are the buckets of the item that the crowd buys.
	crowdBuckets = 8
	// crowdPerUnit is the number of buyers for one unit.
	crowdPerUnit = 5
	// crowdTimeout is how long after the opening a buyer repeats a request. It is longer than a
	// million buyers need.
	crowdTimeout = 15 * time.Minute
	// killsEvery is the mean time from the restart of a master to the next kill, and killedFor how
	// long a master is down.
	killsEvery = 3 * time.Second
	killedFor  = 500 * time.Millisecond
	// restartWithin bounds the wait for the first answer of a master that is started again.
	restartWithin = 30 * time.Second
)

// crowdSummary is what the load test reports. Its progress ends with the verdict in one line.
type crowdSummary struct {
	Pass              bool    `json:"pass"`
	ElapsedSeconds    float64 `json:"elapsed_seconds"`
	RequestsPerSecond float64 `json:"requests_per_second"`
	AcceptedPerSecond float64 `json:"accepted_per_second"`
	RetriedBusy       int64   `json:"retried_busy"`
	RetriedUnknown    int64   `json:"retried_unknown"`
	GaveUp            int64   `json:"gave_up"`
}

// measureBucketsCrowd lets the load test's buyers buy a divided item from two API processes while
// masters are killed and started again. It fails unless the load test's verdict is PASS.
func measureBucketsCrowd(ctx context.Context, m *meter) (err error) {
	s, err := newBucketShop(ctx, m, "always", 2)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	_, addrs := s.apis()
	front, err := newRelay(ctx, addrs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, front.close()) }()
	cmd, err := s.loadTest(ctx, "http://"+front.addr())
	if err != nil {
		return err
	}
	var report bytes.Buffer
	cmd.Stdout = &report
	progress, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	kills, watchErr := s.killWhileBuying(ctx, progress)
	// Its exit code repeats the verdict.
	waitErr := cmd.Wait()
	var seen crowdSummary
	if err := json.Unmarshal(report.Bytes(), &seen); err != nil {
		return errors.Join(fmt.Errorf("no verdict: %w", err), watchErr, waitErr)
	}
	fmt.Fprintf(m.out, "buckets, crowd: %d buyers, %d kills, %.0f s, %.0f requests/s, %.0f accepted/s, retried %d busy and %d unknown, gave up %d\n",
		m.o.buckets.buyers, kills, seen.ElapsedSeconds, seen.RequestsPerSecond, seen.AcceptedPerSecond, seen.RetriedBusy, seen.RetriedUnknown, seen.GaveUp)
	if !seen.Pass {
		return errors.Join(errors.New("the verdict is not PASS"), watchErr)
	}
	return errors.Join(watchErr, waitErr)
}

// loadTest builds the load test and returns the command that runs it at a URL.
func (s *bucketShop) loadTest(ctx context.Context, url string) (*exec.Cmd, error) {
	root, err := repo.Root()
	if err != nil {
		return nil, err
	}
	program := filepath.Join(s.world.Dir, "loadtest")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./loadtest")
	build.Dir = root
	if text, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the load test: %w\n%s", err, text)
	}
	token, err := auth.SignToken([]byte(load.Secret), "bench", auth.RoleAdmin, 2*time.Hour, time.Now())
	if err != nil {
		return nil, err
	}
	buyers := s.o.buckets.buyers
	cmd := exec.CommandContext(ctx, program, "--target", url, "--admin-token", token, "--db", s.database(),
		"--buyers", strconv.Itoa(buyers), "--stock", strconv.Itoa(buyers/crowdPerUnit), "--buckets", strconv.Itoa(crowdBuckets),
		"--timeout", crowdTimeout.String(), "--json")
	cmd.Env = append(os.Environ(), "FLASHSALE_JWT_SECRET="+load.Secret)
	return cmd, nil
}

// killWhileBuying copies the load test's progress to the output until it ends. It kills masters
// from the line that shows that the sale is open to the first that shows the wait for the last
// orders, and returns the number of kills.
func (s *bucketShop) killWhileBuying(ctx context.Context, progress io.Reader) (kills int, err error) {
	buying, stop := context.WithCancel(ctx)
	defer stop()
	var killing errgroup.Group
	started := false
	lines := bufio.NewScanner(progress)
	for lines.Scan() {
		line := lines.Text()
		fmt.Fprintln(s.out, line)
		switch {
		case strings.HasPrefix(line, "sale ") && !started:
			started = true
			killing.Go(func() (err error) {
				kills, err = s.killMasters(buying)
				return err
			})
		case strings.HasPrefix(line, "waiting for the last rows:"):
			stop()
		}
	}
	stop()
	if err := errors.Join(lines.Err(), killing.Wait()); err != nil || kills > 0 {
		return kills, err
	}
	return 0, errors.New("no master was killed")
}

// killMasters kills a random master and starts it again on its data, until ctx ends. All masters
// run then, unless it returns an error.
func (s *bucketShop) killMasters(ctx context.Context) (kills int, err error) {
	for {
		master := s.cluster.Masters[rand.IntN(len(s.cluster.Masters))]
		if err := master.Kill(); err != nil {
			return kills, err
		}
		kills++
		pause.For(ctx, killedFor)
		starting, cancel := context.WithTimeout(context.WithoutCancel(ctx), restartWithin)
		err := master.Start(starting)
		cancel()
		if err != nil {
			return kills, err
		}
		if !pause.For(ctx, killsEvery/2+rand.N(killsEvery)) {
			return kills, nil
		}
	}
}
