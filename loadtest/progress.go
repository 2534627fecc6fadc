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
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/term"
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
	persisted atomic.Int64 // rows seen
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

func (c *counters) line() string {
	phase := ""
	if p := c.phase.Load(); p != nil {
		phase = *p
	}
	if c.total.Load() == 0 {
		return phase
	}
	return fmt.Sprintf("%s: %d of %d answered, %d accepted, %d refused, %d retried, %d failed, %d rows",
		phase, c.answered.Load(), c.total.Load(), c.accepted.Load(), c.refused.Load(), c.retried.Load(), c.failed.Load(), c.persisted.Load())
}

// display shows the counters until the returned function is called, which returns when the
// display no longer uses the terminal.
func display(ctx context.Context, w io.Writer, c *counters) (stop func()) {
	if f, ok := w.(*os.File); ok && term.IsTerminal(f.Fd()) && os.Getenv("TERM") != "dumb" {
		// A terminal without a known size cannot be drawn on.
		if width, height, err := term.GetSize(f.Fd()); err == nil && width > 0 && height > 0 {
			return displayTerminal(f, c)
		}
	}
	return displayLines(ctx, w, c)
}

// displayLines prints one line a second.
func displayLines(ctx context.Context, w io.Writer, c *counters) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if _, err := fmt.Fprintln(w, c.line()); err != nil {
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

// displayTerminal redraws a bar and the figures in place. It reads nothing from the
// terminal: Ctrl-C stays a signal, and an input that is missing or not a terminal cannot
// block it.
func displayTerminal(f *os.File, c *counters) (stop func()) {
	p := tea.NewProgram(screen{c: c, width: 80},
		tea.WithOutput(f), tea.WithInput(nil), tea.WithoutSignalHandler(), tea.WithEnvironment(quietEnvironment()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := p.Run(); err != nil {
			fmt.Fprintln(f, "progress display:", err)
		}
	}()
	return func() {
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

// screen is the display's model.
type screen struct {
	c     *counters
	width int
}

type redraw struct{}

func nextRedraw() tea.Cmd {
	return tea.Tick(100*time.Millisecond, func(time.Time) tea.Msg { return redraw{} })
}

// Init starts the clock of the display.
func (s screen) Init() tea.Cmd { return nextRedraw() }

// Update records the terminal's width and schedules the next redraw.
func (s screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		s.width = msg.Width
	case redraw:
		return s, nextRedraw()
	}
	return s, nil
}

var (
	barDone = lipgloss.NewStyle().Foreground(lipgloss.Color("2"))
	barRest = lipgloss.NewStyle().Foreground(lipgloss.Color("8"))
	faint   = lipgloss.NewStyle().Faint(true)
)

// View draws the bar with the counters below it.
func (s screen) View() tea.View {
	bar := max(10, min(60, s.width-8))
	share := s.c.share()
	filled := min(bar, int(share*float64(bar)))
	line := s.c.line()
	if s.width > 0 && len(line) > s.width {
		line = line[:s.width] // the line is ASCII
	}
	return tea.NewView(barDone.Render(strings.Repeat("█", filled)) + barRest.Render(strings.Repeat("░", bar-filled)) +
		fmt.Sprintf(" %3.0f %%\n", share*100) + faint.Render(line) + "\n")
}
