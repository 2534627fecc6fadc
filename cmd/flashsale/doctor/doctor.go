// Package doctor checks the dependencies of a process of the service, and reports what to fix.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
)

// Timeouts of the checks, and limits of healthy values.
const (
	timeout      = 30 * time.Second
	slowExchange = 5 * time.Millisecond // for one exchange with Redis, the median of pings
	pings        = 21
	minFiles     = 10_000   // open files of a process, one for each connection
	minDisk      = 1 << 30  // free bytes on the disk of the database
	fullDisk     = 64 << 20 // free bytes below which the write-ahead log may not fit; commits fail, or soon will
	maxListed    = 20       // items that a finding names
	minRedis     = "6.2"    // the oldest version that has the commands of the scripts
	maxLag       = 10       // seconds since the last acknowledgement of a replica that counts, as in min-replicas-max-lag by default
)

// The levels of a finding.
const (
	levelOK   = "ok"
	levelNote = "note" // a recommendation, not a problem
	levelWarn = "warn"
	levelFix  = "fix"
)

// finding is the result of checking one part.
type finding struct {
	level  string
	part   string
	says   string
	remedy string // the fix; empty if there is no problem
}

// doctor checks everything on which a process of the service depends. It changes nothing, and
// may run beside the service.
type doctor struct {
	settings *config.Settings
	now      func() time.Time // this machine's clock
	patience time.Duration    // see lockPatience
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

// failed records an error of loading a part, which contains its own fix.
func (d *doctor) failed(part string, err error) { d.fix(part, err.Error(), "") }

// advise records recommended changes, and reports whether one of them is about a statement.
func (d *doctor) advise(part, statement string, change []backend.Advice) (about bool) {
	for _, c := range change {
		about = about || c.Says == statement
		if c.Must {
			d.fix(part, c.Says, c.Fix)
		} else {
			d.warn(part, c.Says, c.Fix)
		}
	}
	return about
}

// errUnhealthy sets exit code 1.
var errUnhealthy = errors.New("problems found")

// Run checks everything and prints the findings. now is this machine's clock. Errors: problems
// were found, or out cannot be written.
func Run(ctx context.Context, s *config.Settings, now func() time.Time, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	d := &doctor{settings: s, now: now, patience: lockPatience}
	d.variables()
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
