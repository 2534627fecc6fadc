package admin

import (
	"cmp"
	"context"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/term"
)

// draw shows the figures on a terminal until the user quits or ctx ends. The terminal is
// restored in any case.
func (t *topSource) draw(ctx context.Context, out *os.File) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	options := []tea.ProgramOption{tea.WithContext(ctx), tea.WithOutput(out), tea.WithoutSignalHandler()}
	if !term.IsTerminal(os.Stdin.Fd()) {
		options = append(options, tea.WithInput(nil)) // the command's input is something else
	}
	p := tea.NewProgram(topModel{state: topState{server: t.server}, now: time.Now}, options...)
	ended := make(chan error, 1)
	go func() {
		err := t.follow(ctx, func(n topUpdate) { p.Send(n) })
		ended <- err
		p.Quit()
	}()
	_, err := p.Run()
	if ctx.Err() != nil {
		err = nil // a signal has ended it, which is a way to quit
	}
	cancel()
	return cmp.Or(<-ended, err)
}

// topModel is the program that draws the screen.
type topModel struct {
	state         topState
	arrived       time.Time // when the last event came
	width, height int
	now           func() time.Time
}

// topTick makes the age of the figures visible.
type topTick struct{}

func nextTopTick() tea.Cmd {
	return tea.Tick(time.Second, func(time.Time) tea.Msg { return topTick{} })
}

// Init starts the clock.
func (m topModel) Init() tea.Cmd { return nextTopTick() }

// Update takes an event, a key or a new size.
func (m topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "Q", "esc", "ctrl+c", "ctrl+d":
			return m, tea.Quit
		}
	case topUpdate:
		m.state.notice = msg.notice
		if msg.event != nil {
			m.state.event, m.arrived = msg.event, m.now()
		}
	case topTick:
		return m, nextTopTick()
	}
	return m, nil
}

// View draws the screen.
func (m topModel) View() tea.View {
	s := m.state
	if s.event != nil {
		s.age = m.now().Sub(m.arrived)
	}
	v := tea.NewView("")
	v.AltScreen = true
	if m.width > 0 && m.height > 0 {
		v.Content = strings.Join(s.screen(m.width, m.height), "\n")
	}
	return v
}
