package service

import (
	"io"
	"net/http"
	"os"
	"runtime"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"flashsale/cmd/flashsale/config"
	"flashsale/handler"
)

// env is what every part of one process needs.
type env struct {
	settings *config.Settings
	role     Role
	build    Build
	log      zerolog.Logger
	out      io.Writer // of what the start prints
	registry *prometheus.Registry
	now      func() time.Time // this host's clock
}

// embedded reports whether Redis runs in this process.
func (e *env) embedded() bool { return e.settings.Redis == config.EmbeddedRedis }

// reporter returns a function that logs errors of background work, a few a
// second: an outage repeats itself.
func (e *env) reporter(room string) func(error) {
	log := e.log.Sample(&zerolog.BurstSampler{Burst: 5, Period: time.Second})
	return func(err error) { log.Warn().Str("component", room).Err(err).Msg(room + " failed, retrying") }
}

// server makes a server that logs as the process does.
func (e *env) server(h http.Handler) *http.Server {
	srv := handler.NewServer(h)
	srv.ErrorLog = handler.ServerLog(e.log)
	return srv
}

func newLogger(s *config.Settings) zerolog.Logger {
	var w io.Writer = os.Stderr
	if s.LogFormat == "console" {
		plain := os.Getenv("NO_COLOR") != "" || !term.IsTerminal(os.Stderr.Fd())
		w = zerolog.ConsoleWriter{Out: os.Stderr, TimeFormat: time.RFC3339, NoColor: plain}
	}
	level, err := zerolog.ParseLevel(s.LogLevel)
	if err != nil {
		level = zerolog.InfoLevel // validated before; a level must be chosen
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

// settleProcessors gives a process that only writes to SQLite one processor: it
// does one thing at a time, and a second would look for work that is not there.
// That was a sixth of such a worker's processor time. GOMAXPROCS overrides it.
func settleProcessors(r Role) {
	if r.worker && !r.api && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
}
