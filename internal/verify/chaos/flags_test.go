//go:build chaos && unix

package chaos

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

// options are the suite's flags.
var options struct {
	seed   uint64
	engine string
	db     string
	rounds int
	out    string
	small  bool
	full   bool
	times  bool
}

func init() {
	flag.Uint64Var(&options.seed, "seed", 0, "the first round's seed, of which everything that is drawn follows; 0: one by chance")
	flag.StringVar(&options.engine, "engine", "redis", "what the service runs on: redis")
	flag.StringVar(&options.db, "db", "sqlite", "the database: sqlite or postgres")
	flag.IntVar(&options.rounds, "rounds", 1, "how often each fault is run, each time with the next seed")
	flag.StringVar(&options.out, "out", "", "folder of the results (default .cache/chaos of the repository)")
	flag.BoolVar(&options.small, "small", false, "run only the small set of faults")
	flag.BoolVar(&options.full, "full", false, "strike at every named point, not at one")
	flag.BoolVar(&options.times, "times", false, "fail where recovery took longer than is promised; for a machine that does nothing else")
}

// results is the folder of this run's results.
var results string

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := prepare()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(code)
	}
	redis.SetLogger(silent{})
	code = m.Run()
	redistest.Shutdown()
	process.Shutdown()
	os.Exit(code)
}

// silent keeps the Redis client from logging the faults.
type silent struct{}

// Printf drops a line.
func (silent) Printf(context.Context, string, ...any) {}

// prepare checks the flags and sets defaults.
func prepare() (code int, err error) {
	switch {
	case options.engine != "redis":
		return 2, fmt.Errorf("-engine %q: there is redis", options.engine)
	case databases[options.db] == nil:
		return 2, fmt.Errorf("-db %q: there are sqlite and postgres", options.db)
	case options.rounds < 1:
		return 2, fmt.Errorf("-rounds %d: use 1 or more", options.rounds)
	}
	if options.seed == 0 {
		options.seed = 1 + rand.Uint64N(1<<31)
	}
	out := options.out
	if out == "" {
		out = filepath.Join("..", "..", "..", ".cache", "chaos")
	}
	if out, err = filepath.Abs(out); err != nil {
		return 1, err
	}
	results = filepath.Join(out, fmt.Sprintf("%s-%d", time.Now().UTC().Format("20060102T150405"), options.seed))
	return 0, nil
}
