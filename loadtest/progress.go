package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/term"

	"flashsale/internal/plural"
)

// counters are the figures of a run while it goes on. The workers write them,
// the display reads them.
type counters struct {
	phase     atomic.Pointer[string]
	total     atomic.Int64 // requests planned
	answered  atomic.Int64 // requests with a final outcome
	accepted  atomic.Int64
	refused   atomic.Int64
	failed    atomic.Int64 // given up
	retried   atomic.Int64
	persisted atomic.Int64 // rows seen; 0 before the purchases have ended, which is when rows are first read
}

// enter sets the name of the present phase.
func (c *counters) enter(phase string) { c.phase.Store(&phase) }

func (c *counters) settle(k kind) {
	c.answered.Add(1)
	switch k {
	case kindAccepted:
		c.accepted.Add(1)
	case kindRefused:
		c.refused.Add(1)
	default:
		c.failed.Add(1)
	}
}

func (c *counters) share() float64 {
	if total := c.total.Load(); total > 0 {
		return float64(c.answered.Load()) / float64(total)
	}
	return 0
}

// phaseName is the name of the present phase.
func (c *counters) phaseName() string {
	if p := c.phase.Load(); p != nil {
		return *p
	}
	return ""
}

func (c *counters) figures() string {
	text := fmt.Sprintf("%d of %d answered, %d accepted, %d refused, %d retried, %d failed",
		c.answered.Load(), c.total.Load(), c.accepted.Load(), c.refused.Load(), c.retried.Load(), c.failed.Load())
	if n := c.persisted.Load(); n > 0 {
		text += ", " + plural.Count(n, "row")
	}
	return text
}

func (c *counters) line() string {
	if c.total.Load() == 0 {
		return c.phaseName()
	}
	return c.phaseName() + ": " + c.figures()
}

// display shows the counters until the returned function is called, which returns when the
// display no longer uses the terminal.
func display(ctx context.Context, w io.Writer, c *counters, rec *recorder) (stop func()) {
	if f, ok := w.(*os.File); ok && term.IsTerminal(f.Fd()) && os.Getenv("TERM") != "dumb" {
		// A terminal without a known size cannot be drawn on.
		if width, height, err := term.GetSize(f.Fd()); err == nil && width > 0 && height > 0 {
			return displayTerminal(f, screen{c: c, rec: rec, width: width, height: height})
		}
	}
	return displayLines(ctx, w, c, rec)
}

// displayLines prints one line a second.
func displayLines(ctx context.Context, w io.Writer, c *counters, rec *recorder) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if _, err := fmt.Fprintln(w, c.line()+rec.sofar().line()); err != nil {
					return // the output is closed; the run goes on for its verdict
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// displayTerminal redraws the figures in place. It reads nothing from the terminal: Ctrl-C
// stays a signal, and an input that is missing or not a terminal cannot block it.
func displayTerminal(f *os.File, s screen) (stop func()) {
	p := tea.NewProgram(s,
		tea.WithOutput(f), tea.WithInput(nil), tea.WithoutSignalHandler(), tea.WithEnvironment(quietEnvironment()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := p.Run(); err != nil {
			fmt.Fprintln(f, "progress display:", err)
		}
	}()
	return func() {
		// After Ctrl-C the terminal has written ^C somewhere in the last frame. A change of
		// size draws all of it again.
		if width, height, err := term.GetSize(f.Fd()); err == nil {
			p.Send(tea.WindowSizeMsg{Width: width, Height: height})
		}
		p.Quit()
		bound := time.NewTimer(2 * time.Second)
		defer bound.Stop()
		select {
		case <-done:
		case <-bound.C:
			p.Kill()
			<-done
		}
	}
}

// quietEnvironment is the environment under which the display sends no queries to the
// terminal: the replies would not be read, and would appear on the shell's next line.
func quietEnvironment() []string {
	env := []string{"SSH_TTY=none", "TERM_PROGRAM=Apple_Terminal"}
	name := os.Getenv("TERM")
	if !strings.HasPrefix(name, "screen") && !strings.HasPrefix(name, "tmux") && name != "linux" {
		name = "xterm-256color"
	}
	env = append(env, "TERM="+name)
	if v, ok := os.LookupEnv("NO_COLOR"); ok {
		env = append(env, "NO_COLOR="+v)
	}
	return env
}
