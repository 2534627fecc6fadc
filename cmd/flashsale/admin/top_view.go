package admin

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"charm.land/lipgloss/v2"
)

var (
	topBold  = lipgloss.NewStyle().Bold(true)
	topFaint = lipgloss.NewStyle().Faint(true)
	topGood  = lipgloss.NewStyle().Foreground(lipgloss.Color("2"))
	topWarn  = lipgloss.NewStyle().Foreground(lipgloss.Color("3"))
	topBad   = lipgloss.NewStyle().Foreground(lipgloss.Color("1")).Bold(true)
	topPlain = lipgloss.NewStyle()
)

// segment is a part of a line in one style.
type segment struct {
	text  string
	style lipgloss.Style
}

// topLine is a line of the screen. It is cut at the right edge.
type topLine []segment

func (l topLine) plain(text string) topLine { return append(l, segment{text, topPlain}) }
func (l topLine) faint(text string) topLine { return append(l, segment{text, topFaint}) }
func (l topLine) bold(text string) topLine  { return append(l, segment{text, topBold}) }

// render returns the line with at most width characters.
func (l topLine) render(width int) string {
	var b strings.Builder
	for _, s := range l {
		text := fit(s.text, width)
		if text == "" {
			continue
		}
		width -= utf8.RuneCountInString(text)
		b.WriteString(s.style.Render(text))
	}
	return b.String()
}

// fit cuts a text to width characters, with an ellipsis, and removes what could control the
// terminal.
func fit(text string, width int) string {
	text = printable(text)
	if width <= 0 {
		return ""
	}
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// printable removes what could control the terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, text)
}

// fitEnd is fit for a text whose end matters most.
func fitEnd(text string, width int) string {
	r := []rune(text)
	if len(r) <= width || width < 2 {
		return text
	}
	return "…" + string(r[len(r)-width+1:])
}

// fitMiddle is fit for ids, which often begin alike.
func fitMiddle(text string, width int) string {
	const end = 6
	r := []rune(text)
	if len(r) <= width || width < 2*end {
		return text
	}
	return string(r[:width-end-1]) + "…" + string(r[len(r)-end:])
}

// left and right return a text in a column of the given width.
func left(text string, width int) string {
	text = fit(text, width)
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

func right(text string, width int) string {
	text = fit(text, width)
	return strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text))) + text
}

const (
	// labelWidth is the width of the labels at the left edge.
	labelWidth = 11
	// countWidth is the width of a sum.
	countWidth = 14
)

func labelled(name string) topLine { return topLine{}.faint(left(name, labelWidth)) }

// topState is what the screen shows.
type topState struct {
	server string
	event  *topEvent // the last one; nil: none yet
	// age is the time since it arrived, and notice describes a lost connection.
	age    time.Duration
	notice string
}

// staleAfter is the age from which the figures count as old.
const staleAfter = 3 * time.Second

// screen returns the lines for a terminal of the given size.
func (s *topState) screen(width, height int) []string {
	lines := []topLine{s.head(), s.notices()}
	if e := s.event; e != nil {
		lines = append(lines, e.summary()...)
		lines = append(lines, e.latencies()...)
		lines = append(lines, topLine{})
		// The last line of the screen is the footer.
		processes, items := e.processTable(width), e.itemTable(width)
		p, i := shareRows(len(processes), len(items), height-len(lines)-2)
		lines = append(lines, cutRows(processes, p)...)
		lines = append(lines, topLine{})
		lines = append(lines, cutRows(items, i)...)
	}
	lines = lines[:min(len(lines), max(1, height-1))]
	out := make([]string, 0, height)
	for _, l := range lines {
		out = append(out, l.render(width))
	}
	for len(out) < height-1 {
		out = append(out, "")
	}
	if height > 1 {
		out = append(out, topLine{}.faint("q quits").render(width))
	}
	return out
}

// head is the first line: the server, the time, and whether the figures are current.
func (s *topState) head() topLine {
	l := topLine{}.bold("flashsale top").faint("  " + s.server)
	if s.event != nil {
		l = l.plain("  " + s.event.At.UTC().Format("15:04:05") + " UTC  ")
	} else {
		l = l.plain("  ")
	}
	switch {
	case s.event == nil:
		return l
	case s.age > staleAfter:
		return append(l, segment{span(s.age.Truncate(time.Second)) + " old", topBad})
	case !s.event.Complete:
		return append(l, segment{"partial", topWarn})
	default:
		return append(l, segment{"live", topGood})
	}
}

// notices is the second line: why the figures are not current or not complete.
func (s *topState) notices() topLine {
	switch {
	case s.notice != "":
		return topLine{segment{s.notice, topBad}}
	case s.event == nil:
		return topLine{}.plain("waiting for the first figures")
	case s.age > staleAfter:
		return topLine{segment{"the server sends no figures", topBad}}
	case !s.event.Complete:
		return topLine{segment{"the sums are partial: not every process has reported", topWarn}}
	default:
		return nil
	}
}

// summary are the lines of the whole deployment.
func (e *topEvent) summary() []topLine {
	rates := labelled("orders/s").plain("accepted ").bold(left(perSecond(e.Accepted), countWidth)).
		plain("committed ").bold(left(perSecond(e.Committed), countWidth)).plain("refused ").bold(perSecond(e.Refused))
	refused := labelled("refused/s")
	for i, code := range e.byRate() {
		if i > 0 {
			refused = refused.plain("  ")
		}
		rate := e.RefusedByCode[code]
		refused = refused.faint(code + " ").plain(perSecond(&rate))
	}
	if len(refused) == 1 {
		refused = refused.plain(unknown)
	}
	totals := labelled("totals").plain("accepted ").plain(left(thousands(e.Totals.Accepted), countWidth)).
		plain("committed ").plain(left(thousands(e.Totals.Committed), countWidth)).plain("refused ").plain(thousands(e.Totals.Refused))
	locks := labelled("locks").plain("held " + number(e.Locks.Held) + "  waiting " + number(e.Locks.Waiting) +
		"  handovers/s " + perSecond(e.Locks.Handovers)).faint("    breakers ")
	switch open := e.Breakers.Open; {
	case open == nil:
		locks = locks.plain(unknown)
	case *open == 0:
		locks = append(locks, segment{"closed", topGood})
	default:
		locks = append(locks, segment{fmt.Sprintf("%d open", *open), topBad})
	}
	return []topLine{rates, refused, totals, queueLine("queue", e.Queue), queueLine("expiries", e.Expiries), e.workerLine(), locks}
}

func queueLine(name string, q *topQueue) topLine {
	l := labelled(name)
	if q == nil {
		return l.plain(unknown)
	}
	l = l.bold(fmt.Sprintf("%-14s ", thousands(q.Orders)+" orders"))
	if q.Paused {
		l = append(l, segment{"PAUSED  ", topBad})
	}
	age := unknown
	if q.Ready > 0 || q.OldestAge > 0 {
		age = span(time.Duration(q.OldestAge * float64(time.Millisecond)))
	}
	dead := segment{"dead " + thousands(q.Dead), topPlain}
	if q.Dead > 0 {
		dead.style = topBad
	}
	return append(l.plain("oldest "+left(age, 9)), dead).
		plain(fmt.Sprintf("  ready %s  leased %s  delayed %s", thousands(q.Ready), thousands(q.Leased), thousands(q.Delayed)))
}

func (e *topEvent) workerLine() topLine {
	l := labelled("workers")
	switch w := e.Workers; {
	case w == nil:
		return l.plain(unknown)
	case w.Trouble != "":
		return append(l, segment{w.Trouble, topBad})
	default:
		return l.plain(thousands(int64(w.Live)) + " live")
	}
}

// latencies is the table of the times of answers.
func (e *topEvent) latencies() []topLine {
	const column = 10
	head := topLine{}.faint(left("latency", labelWidth) + right("ANSWERS/S", column))
	for _, name := range []string{"P50", "P90", "P99", "MAX"} {
		head = head.faint(right(name, column))
	}
	lines := []topLine{head}
	for _, row := range []struct{ status, name string }{{"201", "committed"}, {"202", "queued"}} {
		v := e.Latency[row.status]
		l := labelled("  " + row.status).plain(right(perSecond(v.PerSecond), column))
		for _, ms := range []*float64{v.P50, v.P90, v.P99, v.Max} {
			l = l.plain(right(latency(ms), column))
		}
		lines = append(lines, l.faint("  "+row.name))
	}
	return lines
}

// processTable has a row for each process.
func (e *topEvent) processTable(width int) []topLine {
	host := max(8, width-7-9-11-6-12-6-11-6)
	row := func(kind, name, up, accepted, share, committed, share2, refused, locks string) string {
		return left(kind, 7) + left(fitEnd(name, host), host) + right(up, 9) + right(accepted, 11) + right(share, 6) +
			right(committed, 12) + right(share2, 6) + right(refused, 11) + right(locks, 6)
	}
	lines := []topLine{topLine{}.faint(row("KIND", "PROCESS", "UP", "ACCEPTED/S", "SHARE", "COMMITTED/S", "SHARE", "REFUSED/S", "LOCKS"))}
	processes := slices.Clone(e.Processes)
	slices.SortStableFunc(processes, func(a, b topProcess) int { // those that are late come first
		switch {
		case a.Accepted == nil && b.Accepted != nil:
			return -1
		case a.Accepted != nil && b.Accepted == nil:
			return 1
		default:
			return 0
		}
	})
	for i := range processes {
		p := &processes[i]
		if p.Accepted == nil {
			silent := left(p.Kind, 7) + left(fitEnd(p.Host, host), host) + "  "
			style, what := topWarn, "no rates yet"
			if d := e.At.Sub(p.SeenAt); d > time.Second+staleAfter/2 {
				style, what = topBad, "no report for "+span(d.Truncate(time.Second))
			}
			lines = append(lines, append(topLine{}.plain(silent), segment{what, style}))
			continue
		}
		accepted, share1, committed, share2 := perSecond(p.Accepted), percent(p.AcceptedShare), perSecond(p.Committed), percent(p.CommittedShare)
		refused, locks := perSecond(p.Refused), number(p.LocksHeld)
		switch p.Kind { // a worker sells nothing, and an API commits nothing
		case "worker":
			accepted, share1, refused, locks = "", "", "", ""
		case "api":
			committed, share2 = "", ""
		}
		lines = append(lines, topLine{}.plain(row(p.Kind, p.Host, span(e.At.Sub(p.StartedAt).Truncate(time.Second)), accepted, share1,
			committed, share2, refused, locks)))
	}
	return lines
}

// itemTable has a row for each item. On a wide terminal it shows the locks' holders.
func (e *topEvent) itemTable(width int) []topLine {
	if len(e.Items) == 0 {
		return []topLine{topLine{}.faint("no purchases yet; --item shows chosen items")}
	}
	const holderFrom = 110
	holder := 0
	if width >= holderFrom {
		holder = width / 3
	}
	name := max(8, width-11-14-14-11-9-holder)
	row := func(id, state, left1, total, rate, waiting, by string) string {
		text := left(fitMiddle(id, name), name) + " " + left(state, 10) + right(left1, 14) + right(total, 14) + right(rate, 11) + right(waiting, 9)
		if holder > 0 {
			text += "  " + left(by, holder-2)
		}
		return text
	}
	title := "ITEM"
	if n := e.ItemsActive; n != nil && *n > int64(len(e.Items)) {
		title = fmt.Sprintf("ITEM (%d of %s)", len(e.Items), thousands(*n))
	}
	lines := []topLine{topLine{}.faint(row(title, "STATE", "LEFT", "TOTAL", "ACCEPTED/S", "WAITING", "LOCK HELD BY"))}
	for i := range e.Items {
		v := &e.Items[i]
		state, waiting, by := unknown, unknown, ""
		if v.State != nil {
			state = *v.State
		}
		if v.Lock != nil {
			waiting = thousands(v.Lock.Waiting)
			if v.Lock.Holder != nil {
				by = *v.Lock.Holder
			}
		}
		lines = append(lines, topLine{}.plain(row(v.ID, state, number(v.Left), number(v.Total), perSecond(v.PerSecond), waiting, by)))
	}
	return lines
}

// shareRows divides the rows of the screen between two tables: what one of them does not need,
// the other gets.
func shareRows(a, b, rows int) (int, int) {
	rows = max(0, rows)
	if a+b <= rows {
		return a, b
	}
	first := min(a, max(rows/2, rows-b))
	return first, min(b, rows-first)
}

// cutRows returns the first n lines of a table. If it has more, the last line says so.
func cutRows(lines []topLine, n int) []topLine {
	if len(lines) <= n {
		return lines
	}
	if n < 2 {
		return lines[:n]
	}
	return append(lines[:n-1:n-1], topLine{}.faint(fmt.Sprintf("… %d more", len(lines)-n+1)))
}
