package service

import (
	"bytes"
	"io"
	stdlog "log"
	"os"
	"sync/atomic"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"flashsale/cmd/flashsale/config"
)

const (
	// logLines bounds the lines that wait for the reader of the log.
	logLines = 4096
	// logFlush bounds how long a process that stops waits for the reader of its log.
	logFlush = time.Second
)

// newLogger returns the log of the process, and a function that ends it and writes what is queued.
func newLogger(s *config.Settings, registry prometheus.Registerer) (zerolog.Logger, func()) {
	level, err := zerolog.ParseLevel(s.LogLevel)
	if err != nil {
		level = zerolog.InfoLevel // validated before
	}
	to := func(w io.Writer) zerolog.Logger {
		if s.LogFormat == "console" {
			plain := os.Getenv("NO_COLOR") != "" || !term.IsTerminal(os.Stderr.Fd())
			w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.RFC3339, NoColor: plain}
		}
		return zerolog.New(w).Level(level).With().Timestamp().Logger()
	}
	direct := to(os.Stderr)
	q := newLogQueue(os.Stderr, func(dropped int64) {
		direct.Warn().Int64("dropped", dropped).Msg("lines of the log were dropped: its reader was too slow")
	})
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "flashsale_log_lines_dropped_total",
		Help: "Log lines that were dropped because the reader of the log was too slow.",
	}, func() float64 { return float64(q.dropped.Load()) }))
	return to(q), func() { q.flush(time.After(logFlush)) }
}

// captureStandardLog sends the lines of the standard logger to log until restore is called.
func captureStandardLog(log zerolog.Logger) (restore func()) {
	out, flags := stdlog.Writer(), stdlog.Flags() //nolint:forbidigo // libraries write to this logger
	stdlog.SetFlags(0)                            //nolint:forbidigo // the same
	stdlog.SetOutput(standardLog{log})            //nolint:forbidigo // the same
	return func() {
		stdlog.SetOutput(out)  //nolint:forbidigo // the same
		stdlog.SetFlags(flags) //nolint:forbidigo // the same
	}
}

// standardLog converts the lines of the standard logger to events.
type standardLog struct{ log zerolog.Logger }

// unsolicited begins the line of an HTTP client about bytes that a server sends without a request. So a receiver
// of webhooks determines how many there are.
const unsolicited = "Unsolicited response"

func (w standardLog) Write(line []byte) (int, error) {
	level := zerolog.WarnLevel
	if bytes.HasPrefix(line, []byte(unsolicited)) {
		level = zerolog.DebugLevel
	}
	w.log.WithLevel(level).Str("from", "log").Msg(string(bytes.TrimSpace(line)))
	return len(line), nil
}

// logQueue writes lines of the log in the background. A pipe whose reader has stopped, such as a
// pager or a stuck collector, blocks every write; without the queue, requests and the stop of the
// process would wait for it. If more than logLines wait, lines are dropped and counted.
//
// zerolog's diode does not fit: its reader can miss the wake-up of the last line.
type logQueue struct {
	lines   chan []byte
	dropped atomic.Int64
	end     chan struct{} // closed by flush
	done    chan struct{} // closed when all is written
}

// newLogQueue starts a queue of lines for to. report writes to it how many lines were dropped, once
// those that waited are written.
func newLogQueue(to io.Writer, report func(dropped int64)) *logQueue {
	q := &logQueue{lines: make(chan []byte, logLines), end: make(chan struct{}), done: make(chan struct{})}
	go q.run(to, report)
	return q
}

// Write queues a line. It never blocks and never fails.
func (q *logQueue) Write(line []byte) (int, error) {
	select {
	case q.lines <- bytes.Clone(line): // the caller reuses its buffer
	default:
		q.dropped.Add(1)
	}
	return len(line), nil
}

func (q *logQueue) run(to io.Writer, report func(dropped int64)) {
	defer close(q.done)
	reported := int64(0)
	write := func(line []byte) {
		_, _ = to.Write(line) //nolint:errcheck // an error of the log has no better place to go
		if n := q.dropped.Load(); n > reported && len(q.lines) == 0 {
			report(n - reported)
			reported = n
		}
	}
	for {
		select {
		case line := <-q.lines:
			write(line)
		case <-q.end:
			for len(q.lines) > 0 {
				write(<-q.lines)
			}
			return
		}
	}
}

// flush writes the lines that wait, and ends the queue. It gives up when patience ends.
func (q *logQueue) flush(patience <-chan time.Time) {
	close(q.end)
	select {
	case <-q.done:
	case <-patience:
	}
}
