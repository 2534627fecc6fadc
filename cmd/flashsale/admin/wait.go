package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"flashsale/cmd/flashsale/config"
)

// The pauses between readiness checks double up to the longest one.
const (
	firstReadyPause   = 50 * time.Millisecond
	longestReadyPause = time.Second
	// readyProbe bounds one check: a frozen process accepts connections but never answers.
	readyProbe = 2 * time.Second
	// maxWait bounds --wait.
	maxWait = time.Hour
)

// addWait declares --wait for commands that go through the API; see dial.
func addWait(f *pflag.FlagSet) {
	f.Duration("wait", 0, "how long to wait until the API is ready, for example 30s; 0: not at all")
}

// waitFor returns the value of --wait.
func waitFor(c *cobra.Command) (time.Duration, error) {
	d, err := c.Flags().GetDuration("wait")
	if err == nil && (d < 0 || d > maxWait) {
		err = config.Usage(fmt.Errorf("--wait %v: use 0 to %v", d, maxWait))
	}
	return d, err
}

// waitReady waits until the API is ready. After the time it returns the reason why the API is
// not ready.
func (r *remote) waitReady(ctx context.Context, wait time.Duration) error {
	if wait == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var last error
	for pause := firstReadyPause; ; pause = min(2*pause, longestReadyPause) {
		again, err := r.ready(ctx)
		if err == nil || !again {
			return err
		}
		// A check that was cut off at the end knows less than the previous one.
		if ctx.Err() == nil || last == nil {
			last = err
		}
		next := time.NewTimer(pause)
		select {
		case <-next.C:
			continue
		case <-ctx.Done():
			next.Stop()
		}
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("interrupted while waiting for %s: %w", r.server, ctx.Err())
		}
		return fmt.Errorf("%s is not ready after %v: %w", r.server, wait, last)
	}
}

// ready checks once whether the API is ready. again reports whether that may change.
func (r *remote) ready(ctx context.Context) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readyProbe)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(r.server, "/")+"/readyz", nil)
	if err != nil {
		return false, err
	}
	res, err := r.client.Do(req)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err // without the URL, which the caller adds
		}
		return true, fmt.Errorf("%w; start the service, or correct --server", err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	switch {
	case err != nil:
		return true, err
	case res.StatusCode == http.StatusOK:
		return false, nil
	case res.StatusCode < 500:
		return false, fmt.Errorf("%s/readyz answered %s; check --server", strings.TrimSuffix(r.server, "/"), res.Status)
	}
	var report struct{ Failing []string }
	if json.Unmarshal(text, &report) != nil || len(report.Failing) == 0 {
		return true, fmt.Errorf("it answered %s", res.Status)
	}
	return true, fmt.Errorf("it reports failing parts: %s", strings.Join(report.Failing, ", "))
}
