package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"flashsale/internal/bucket"
	"flashsale/internal/flagvalue"
	"flashsale/internal/postgresurl"
	"flashsale/internal/wire"
)

// The load profiles.
const (
	profileBurst  = "burst"  // every request is due at the start
	profileRamp   = "ramp"   // the rate rises evenly from nothing to --rate
	profileSteady = "steady" // --rate from the first request to the last
	profileFlash  = "flash"  // a lobby of readers, a burst at the opening, stragglers
)

const secretEnv = "FLASHSALE_JWT_SECRET"

// options are what the user may set. See flags for the meaning of each.
type options struct {
	Target     string
	AdminToken string
	Secret     string

	Buyers   int
	Stock    int64
	Buckets  int
	Limit    int64
	Quantity int64

	Profile     string
	Rate        float64       // requests per second
	Lobby       time.Duration // flash: from the start to the opening
	Readers     int           // flash: readers in the lobby
	ReadEvery   time.Duration // flash: mean time between two reads of a reader
	Stragglers  float64       // flash: fraction of the purchases
	Tail        time.Duration // flash: time after the opening in which the stragglers come
	Duplicates  float64       // fraction of buyers
	Greedy      float64       // fraction of buyers
	Connections int
	Async       bool
	Seed        uint64

	Split bool          // start a deployment and kill parts of it
	Kill  []string      // what to kill, and when: see parseKill
	Down  time.Duration // how long a process of Kill is down
	kills []killSpec    // parsed from Kill

	JSON    bool
	Report  string
	Redis   string
	DB      string
	Timeout time.Duration
}

// usageError names the option, its value and the fix. It ends the run with exit code 2.
type usageError struct {
	option, value, fix string
}

func (e *usageError) Error() string {
	if e.option == "" {
		return e.fix
	}
	return fmt.Sprintf("--%s %q: %s", e.option, postgresurl.Redact(e.value), e.fix)
}

func flags(o *options) *pflag.FlagSet {
	f := pflag.NewFlagSet("loadtest", pflag.ContinueOnError)
	f.SortFlags = false
	f.IntVar(&o.Buyers, "buyers", 20_000, "number of buyers, each with one purchase")
	f.Int64Var(&o.Stock, "stock", 1_000, "units on sale")
	f.IntVar(&o.Buckets, "buckets", 1, "buckets into which the stock is divided")
	f.Int64Var(&o.Limit, "limit", 1, "units one buyer may have")
	f.Int64Var(&o.Quantity, "quantity", 1, "units of one purchase")
	f.StringVar(&o.Profile, "profile", profileBurst, "burst (all at once), ramp (rising to --rate), steady (at --rate) or flash (readers before the opening, a burst, stragglers)")
	f.Float64Var(&o.Rate, "rate", 2_000, "requests per second of the ramp's end and of steady")
	f.DurationVar(&o.Lobby, "lobby", 5*time.Second, "flash: how long readers wait for the opening")
	f.IntVar(&o.Readers, "readers", 500, "flash: readers who reload the item's page before the opening")
	f.DurationVar(&o.ReadEvery, "read-every", time.Second, "flash: mean time between two reads of a reader")
	f.Float64Var(&o.Stragglers, "stragglers", 0.1, "flash: fraction of the purchases, 0 to 1, that come after the burst")
	f.DurationVar(&o.Tail, "tail", 5*time.Second, "flash: how long after the opening the last straggler comes")
	f.Float64Var(&o.Duplicates, "duplicates", 0, "fraction of buyers, 0 to 1, who send their request twice in parallel with the same key")
	f.Float64Var(&o.Greedy, "greedy", 0, "fraction of buyers, 0 to 1, who send one purchase more than their limit allows, each with its own key")
	f.IntVar(&o.Connections, "connections", 256, "connections, opened before the start; unless set, --split opens no more than a quarter of the orders that can be sold")
	f.BoolVar(&o.Async, "async", false, "ask for 202 as soon as the order is queued (Prefer: respond-async)")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the buyers' order and of the choice of duplicates")
	f.BoolVar(&o.Split, "split", false, "start a deployment instead of one process: redis-server, two APIs and two workers; one of each is killed during the burst")
	f.StringSliceVar(&o.Kill, "kill", nil, "with --split: kill these processes instead, and start them again: worker@50% kills all workers once half of the orders are acknowledged; also worker1, worker2, api1")
	f.DurationVar(&o.Down, "down", 2*time.Second, "how long a process of --kill is down")
	f.StringVar(&o.Target, "target", "", "URL of a running service; without it the service is built and started here")
	f.StringVar(&o.AdminToken, "admin-token", "", "admin's token for --target; without it one is signed or asked of /dev/tokens")
	f.StringVar(&o.Secret, "jwt-secret", "", "key of the service at --target, to sign tokens here (better set as "+secretEnv+")")
	f.StringVar(&o.Redis, "redis", "", "Redis of the service started here, for example redis://127.0.0.1:6379/0 (default embedded)")
	f.StringVar(&o.DB, "db", "", "database, sqlite:PATH or postgres://user@host/database (an empty one): of the service started here, or where to check the one at --target")
	f.DurationVar(&o.Timeout, "timeout", 60*time.Second, "longest wait for the service to start, for one request's retries, and for the last order's row")
	f.BoolVar(&o.JSON, "json", false, "print one JSON document to standard output")
	f.StringVar(&o.Report, "report", "", "write a self-contained HTML report to this file")
	return f
}

// parse reads the arguments. pflag.ErrHelp means that help was asked for and given.
func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flags(&o)
	f.SetOutput(io.Discard) // the caller reports errors
	if err := f.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			_, werr := fmt.Fprintf(stderr, "Usage: go run ./loadtest [options]\n\nSimulates the buyers of a flash sale and verifies the result.\n\n%s", f.FlagUsages())
			return o, errors.Join(err, werr)
		}
		return o, explain(err)
	}
	if rest := f.Args(); len(rest) > 0 {
		return o, &usageError{fix: fmt.Sprintf("argument %q: only options are understood; see --help", rest[0])}
	}
	if o.Secret == "" {
		o.Secret = os.Getenv(secretEnv)
	}
	if f.Changed("rate") && (o.Profile == profileBurst || o.Profile == profileFlash) {
		return o, &usageError{"rate", f.Lookup("rate").Value.String(), "a burst has no rate; add --profile steady or --profile ramp"}
	}
	for _, name := range []string{"lobby", "readers", "read-every", "stragglers", "tail"} {
		if f.Changed(name) && o.Profile != profileFlash {
			return o, &usageError{name, f.Lookup(name).Value.String(), "is for --profile flash"}
		}
	}
	if f.Changed("down") && len(o.Kill) == 0 {
		return o, &usageError{"down", o.Down.String(), "is for --kill"}
	}
	if o.Split && !f.Changed("connections") {
		// With more connections, everything could be sold before the kills.
		o.Connections = min(o.Connections, max(4, o.orders()/4))
	}
	err := o.check()
	return o, err
}

// orders is how many orders can be sold at least, if all buyers are served.
func (o *options) orders() int {
	if o.Quantity < 1 {
		return 0 // refused by check
	}
	return int(min(int64(o.Buyers), o.Stock/o.Quantity))
}

// explain gives pflag's errors the form of ours.
func explain(err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		f := invalid.GetFlag()
		cause, fix := flagvalue.Explain(f, invalid.GetValue(), err)
		return &usageError{f.Name, invalid.GetValue(), cause + "; " + fix}
	}
	var missing *pflag.ValueRequiredError
	if errors.As(err, &missing) {
		return &usageError{missing.GetSpecifiedName(), "", "needs a value; see --help"}
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		return &usageError{unknown.GetSpecifiedName(), "", "no such option; see --help"}
	}
	return &usageError{fix: err.Error() + "; see --help"}
}

func (o *options) check() error {
	bad := func(option string, value any, fix string) error {
		return &usageError{option, fmt.Sprint(value), fix}
	}
	switch {
	case o.Buyers < 1 || o.Buyers > 1_000_000:
		return bad("buyers", o.Buyers, "must be 1 to 1000000")
	case o.Buckets < 1 || o.Buckets > bucket.Max:
		return bad("buckets", o.Buckets, fmt.Sprintf("must be 1 to %d", bucket.Max))
	case o.Stock < 1 || o.Stock > 1_000_000_000:
		return bad("stock", o.Stock, "must be 1 to 1000000000")
	case o.Limit < 1 || o.Limit > 1_000:
		return bad("limit", o.Limit, "must be 1 to 1000")
	case o.Quantity < 1 || o.Quantity > o.Limit:
		return bad("quantity", o.Quantity, fmt.Sprintf("must be 1 to the limit, %d; raise --limit for more", o.Limit))
	case !slices.Contains([]string{profileBurst, profileRamp, profileSteady, profileFlash}, o.Profile):
		return bad("profile", o.Profile, "must be burst, ramp, steady or flash")
	case !(o.Rate >= 0.1 && o.Rate <= 1e6): // this way round NaN is refused too
		return bad("rate", o.Rate, "must be 0.1 to 1000000 requests per second")
	case !(o.Duplicates >= 0 && o.Duplicates <= 1):
		return bad("duplicates", o.Duplicates, "must be a fraction from 0 to 1")
	case !(o.Greedy >= 0 && o.Greedy <= 1):
		return bad("greedy", o.Greedy, "must be a fraction from 0 to 1")
	case o.Connections < 1 || o.Connections > 20_000:
		return bad("connections", o.Connections, "must be 1 to 20000")
	case o.Timeout < 100*time.Millisecond || o.Timeout > time.Hour:
		return bad("timeout", o.Timeout, "must be 100ms to 1h")
	}
	if err := errors.Join(o.checkFlash(), o.checkKills()); err != nil {
		return err
	}
	return o.checkPlaces()
}

// maxReads bounds the reads of a lobby.
const maxReads = 1_000_000

// checkFlash checks the options of the profile flash.
func (o *options) checkFlash() error {
	bad := func(option string, value any, fix string) error {
		return &usageError{option, fmt.Sprint(value), fix}
	}
	switch {
	case o.Lobby < 100*time.Millisecond || o.Lobby > time.Hour:
		return bad("lobby", o.Lobby, "must be 100ms to 1h")
	case o.Readers < 0 || o.Readers > 100_000:
		return bad("readers", o.Readers, "must be 0 to 100000")
	case o.ReadEvery < 10*time.Millisecond || o.ReadEvery > time.Hour:
		return bad("read-every", o.ReadEvery, "must be 10ms to 1h")
	case float64(o.Readers)*float64(o.Lobby)/float64(o.ReadEvery) > maxReads:
		return bad("readers", o.Readers, fmt.Sprintf("makes more than %d reads in a lobby of %s; lower --readers or raise --read-every", maxReads, o.Lobby))
	case !(o.Stragglers >= 0 && o.Stragglers <= 1):
		return bad("stragglers", o.Stragglers, "must be a fraction from 0 to 1")
	case o.Tail < 0 || o.Tail > time.Hour:
		return bad("tail", o.Tail, "must be 0s to 1h")
	}
	return nil
}

// checkKills checks and parses --kill.
func (o *options) checkKills() (err error) {
	if len(o.Kill) == 0 {
		return nil
	}
	if !o.Split {
		return &usageError{"kill", o.Kill[0], "needs --split, whose processes it kills"}
	}
	if o.Down < 0 || o.Down > o.Timeout/2 {
		return &usageError{"down", o.Down.String(), fmt.Sprintf("must be 0s to half of --timeout, %s", o.Timeout/2)}
	}
	o.kills = make([]killSpec, len(o.Kill))
	for i, text := range o.Kill {
		if o.kills[i], err = parseKill(text); err != nil {
			return err
		}
	}
	slices.SortStableFunc(o.kills, func(a, b killSpec) int { return cmp.Compare(a.at, b.at) })
	return checkKilledOnce(o.kills)
}

// checkPlaces checks the options that name files and addresses.
func (o *options) checkPlaces() error {
	// Checked now, since an error at the end would cost the whole run.
	if o.Report != "" {
		f, err := os.OpenFile(o.Report, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return &usageError{"report", o.Report, "cannot be written (" + err.Error() + "); name a file in a folder that exists"}
		}
		if err := f.Close(); err != nil {
			return fmt.Errorf("close %s: %w", o.Report, err)
		}
	}
	if postgresurl.Is(o.DB) {
		if wrong, fix := postgresurl.Check(o.DB); wrong != "" {
			return &usageError{"db", o.DB, wrong + "; " + fix}
		}
	} else if o.DB != "" && !strings.HasPrefix(o.DB, "sqlite:") {
		return &usageError{"db", o.DB, "must be sqlite:PATH or postgres://user@host/database"}
	}
	if o.DB == "sqlite:" {
		return &usageError{"db", o.DB, "the path is missing: sqlite:PATH"}
	}
	if o.Secret != "" && o.Target != "" && len(o.Secret) < 32 {
		// The value is a secret, so the error does not contain it.
		return &usageError{"jwt-secret", "…", "must have 32 bytes or more, like the service's " + secretEnv}
	}
	if o.Split && o.Target != "" {
		return &usageError{"target", o.Target, "does not go with --split, which starts a service of its own"}
	}
	if o.Split && o.Redis != "" {
		return &usageError{"redis", o.Redis, "does not go with --split, which starts a redis-server of its own"}
	}
	if o.Target == "" {
		if o.AdminToken != "" {
			return &usageError{"admin-token", "…", "is for --target; the service started here makes its own"}
		}
		return nil
	}
	if o.Redis != "" {
		return &usageError{"redis", o.Redis, "is for the service started here; the one at --target has its own"}
	}
	if _, err := wire.ParseTarget(o.Target); err != nil {
		return &usageError{"target", o.Target, fmt.Sprintf("%v; for example http://127.0.0.1:8080", err)}
	}
	return nil
}
