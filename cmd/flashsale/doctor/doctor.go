// Package doctor checks what a process of the service would run on, and says what to fix.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"flashsale/cmd/flashsale/config"
)

// The bounds of the doctor's patience and of what it calls healthy.
const (
	timeout      = 30 * time.Second
	slowExchange = 5 * time.Millisecond // for one exchange with Redis, the median of pings
	pings        = 21
	minFiles     = 10_000  // open files a process may have, one for each connection
	minDisk      = 1 << 30 // free bytes beside the database
	minRedis     = 6       // the oldest major version with all that the scripts use
)

// The levels of a finding.
const (
	levelOK   = "ok"
	levelNote = "note" // nothing is wrong, but it could be better
	levelWarn = "warn"
	levelFix  = "fix"
)

// finding is what the doctor says of one part.
type finding struct {
	level  string
	part   string
	says   string
	remedy string // what to do; empty where all is well
}

// doctor looks at everything a process of the service stands on. It changes
// nothing, and may be run beside the service.
type doctor struct {
	settings *config.Settings
	now      func() time.Time // this machine's clock
	found    []finding
}

func (d *doctor) ok(part, says string, args ...any) {
	d.found = append(d.found, finding{levelOK, part, fmt.Sprintf(says, args...), ""})
}

func (d *doctor) warn(part, says, remedy string) {
	d.found = append(d.found, finding{levelWarn, part, says, remedy})
}

func (d *doctor) fix(part, says, remedy string) {
	d.found = append(d.found, finding{levelFix, part, says, remedy})
}

// failed notes an error of loading a part, which names its own remedy.
func (d *doctor) failed(part string, err error) { d.fix(part, err.Error(), "") }

// errUnhealthy makes the exit code 1.
var errUnhealthy = errors.New("problems found")

// Run checks everything, and prints what it found. now is this machine's clock.
// Errors: something has to be fixed, or out cannot be written.
func Run(ctx context.Context, s *config.Settings, now func() time.Time, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	d := &doctor{settings: s, now: now}
	d.keys(ctx)
	d.process()
	recorded := d.database(ctx)
	d.redis(ctx, recorded)
	return d.print(out)
}

func (d *doctor) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	ill := false
	for _, f := range d.found {
		ill = ill || f.level == levelFix
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.level, f.part, f.says)
		if f.remedy != "" {
			fmt.Fprintf(w, "\t\t-> %s\n", f.remedy)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if ill {
		return errUnhealthy
	}
	return nil
}
