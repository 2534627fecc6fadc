package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"flashsale/internal/plural"
	"flashsale/internal/wire"
)

// The exit codes.
const (
	exitPassed = 0
	exitFailed = 1
	exitUsage  = 2
)

// run does everything and returns the exit code. The summary and the verdict
// go to stdout, progress and errors to stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stdout)
	if errors.Is(err, pflag.ErrHelp) {
		return exitPassed
	}
	var s *summary
	if err == nil {
		s, err = perform(ctx, &o, stderr)
	}
	if s != nil {
		err = errors.Join(err, publish(s, &o, stdout, stderr))
	}
	if err != nil {
		// If stderr cannot be written, only the exit code reports the error.
		fmt.Fprintln(stderr, "loadtest:", strings.TrimPrefix(err.Error(), "loadtest: "))
	}
	var usage *usageError
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case err != nil || !s.Pass:
		return exitFailed
	default:
		return exitPassed
	}
}

// perform runs the test against the target, or against a service of its own. It
// returns a summary only if there is a verdict.
func perform(ctx context.Context, o *options, stderr io.Writer) (s *summary, err error) {
	say := func(format string, args ...any) {
		fmt.Fprintf(stderr, format+"\n", args...)
	}
	at, stop, err := prepare(ctx, o, say)
	if err != nil {
		return nil, err
	}
	s, err = at.test(ctx, o, say, stderr)
	if stopErr := stop(); stopErr != nil {
		// A service that does not end properly has failed, whatever it sold.
		say("%v", stopErr)
		if s != nil {
			s.fail("unclean_exit", finding{1, []string{stopErr.Error()}})
		}
	}
	return s, err
}

// prepare starts what the options ask for. The caller stops it.
func prepare(ctx context.Context, o *options, say func(string, ...any)) (at place, stop func() error, err error) {
	switch {
	case o.Target != "":
		return place{urls: []string{o.Target}, db: o.DB, secret: o.Secret}, func() error { return nil }, nil
	case o.Split:
		d, err := startDeployment(ctx, o, say)
		if err != nil {
			return place{}, nil, err
		}
		return d.place(o), d.stop, nil
	default:
		svc, err := startService(ctx, o, say)
		if err != nil {
			return place{}, nil, err
		}
		return svc.place(), svc.stop, nil
	}
}

// publish writes the summary in the forms asked for.
func publish(s *summary, o *options, stdout, stderr io.Writer) error {
	var err error
	if o.JSON {
		err = s.writeJSON(stdout)
		fmt.Fprintln(stderr, s.Line)
	} else {
		err = s.writeText(stdout)
	}
	if o.Report != "" {
		err = errors.Join(err, s.writeReport(o.Report))
	}
	return err
}

// place is a running service.
type place struct {
	urls       []string // one or more; the crowd buys at all of them
	db, secret string
	victims    []victim // processes to kill under the load
	version    string   // of the service, empty: unknown
}

// targets parses the URLs.
func (at place) targets() ([]wire.Target, error) {
	targets := make([]wire.Target, len(at.urls))
	for i, url := range at.urls {
		var err error
		if targets[i], err = wire.ParseTarget(url); err != nil {
			return nil, err
		}
	}
	return targets, nil
}

// test opens a sale at the service, sends the crowd, waits until the sale is
// quiet, and judges.
func (at place) test(ctx context.Context, o *options, say func(string, ...any), stderr io.Writer) (*summary, error) {
	targets, err := at.targets()
	if err != nil {
		return nil, err
	}
	// The process at the last URL is not killed.
	target := targets[len(targets)-1]
	mint := newMinter(at.secret, target, time.Now())
	adminToken := o.AdminToken
	if adminToken == "" {
		if adminToken, err = mint.admin(ctx); err != nil {
			return nil, fmt.Errorf("admin token (or give --admin-token): %w", err)
		}
	}
	admin := newAPI(target, adminToken)
	defer admin.close()
	src, err := openSource(ctx, at.db, admin)
	if err != nil {
		return nil, &usageError{"db", at.db, err.Error() + "; give the database of the service under test, or leave --db away to check through the API"}
	}
	defer closeQuietly(closerFunc(src.close))

	p := newPlan(o, newRunID())
	say("making tokens for %s", plural.Count(len(p.buyers), "buyer"))
	tokens, err := mint.headers(ctx, p.buyers)
	if err != nil {
		return nil, fmt.Errorf("buyers' tokens: %w", err)
	}
	d := &driver{
		plan: p, targets: targets, tokens: tokens, async: o.Async, timeout: o.Timeout, live: new(counters),
		victims: at.victims, orders: o.orders(),
	}
	if err := d.checkTokens(); err != nil {
		return nil, err
	}
	if d.opens, err = admin.openSale(ctx, p, o.Timeout); err != nil {
		return nil, err
	}
	state := "is open"
	if p.opening > 0 {
		state = fmt.Sprintf("opens in %s", time.Until(d.opens).Round(100*time.Millisecond))
	}
	say("sale %s %s: %s, %s, %s, profile %s", p.item, state,
		plural.Count(o.Stock, "unit"), plural.Count(o.Buyers, "buyer"), plural.Count(len(p.shots), "request"), o.Profile)
	return at.crowd(ctx, o, d, src, admin, stderr)
}

// crowd sends the requests, waits for the sale to become quiet, and judges.
func (at place) crowd(ctx context.Context, o *options, d *driver, src source, admin *api, stderr io.Writer) (*summary, error) {
	d.rec = newRecorder(d.plan)
	d.live.total.Store(int64(len(d.plan.shots)))
	d.live.enter("buying")
	hide := display(ctx, stderr, d.live, d.rec)
	defer hide()
	began := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel() // ends the wait for a process that is started again
		if d.plannedKills != nil {
			d.plannedKills.wait()
		}
	}()
	stopProbes := newProber(admin, d.plan.item, d.rec).start(ctx)
	defer stopProbes()
	r, err := d.drive(ctx, o.Connections)
	if err != nil {
		return nil, fmt.Errorf("no verdict: %w", err)
	}
	d.live.enter("waiting for the last rows")
	seen := observe(d.plan, r)
	end, err := waitSettled(ctx, seen, d.plan.item, src, admin, o.Timeout, d.live)
	if err != nil {
		return nil, fmt.Errorf("no verdict: check the orders: %w", err)
	}
	d.plannedKills.wait()
	stopProbes()
	s := summarize(o, d.plan, r)
	s.Load.Target, s.Started, s.Machine, s.Service = strings.Join(at.urls, ", "), began.UTC(), thisMachine(), at.version
	s.conclude(judge(seen, end.rows, end.ledger), end, src.name())
	var void finding
	if s.Kills, void = d.plannedKills.report(); void.count > 0 {
		s.fail("void", void)
	}
	s.Series = d.timeline(s, r)
	return s, nil
}

// timeline ends the recording and returns the series of the run.
func (d *driver) timeline(s *summary, r *result) *series {
	var marks []mark
	if d.plan.opening > 0 {
		marks = append(marks, mark{seconds(d.plan.opening), "opening"})
	}
	for i := range s.Kills {
		k := &s.Kills[i]
		marks = append(marks, mark{k.At, k.Process + " killed"})
		if k.Back != nil {
			marks = append(marks, mark{*k.Back, k.Process + " ready again"})
			d.rec.down(k.Process+" down", d.sched.start.Add(duration(k.At)), d.sched.start.Add(duration(*k.Back)))
		}
	}
	if last := r.elapsed + d.plan.opening; d.rec.worthMarking(last) {
		marks = append(marks, mark{seconds(last), "last answer"})
	}
	slices.SortStableFunc(marks, func(a, b mark) int { return cmp.Compare(a.At, b.At) })
	return d.rec.finish(marks)
}

// closerFunc lets a function be closed like an io.Closer.
type closerFunc func() error

// Close calls the function.
func (f closerFunc) Close() error { return f() }
