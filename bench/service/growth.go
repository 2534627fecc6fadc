package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"flashsale/bench/internal/history"
	"flashsale/bench/internal/load"
	"flashsale/bench/internal/runner"
)

const (
	// growthRate is the target for the rate of a group's last setting, relative to its first.
	growthRate = 0.9
	// growthSettle is how long the load runs before each measurement.
	growthSettle = time.Second
	// growthSaleOrders is the number of orders of a past sale, in the database.
	growthSaleOrders = 1_000
	// growthQueueLimit keeps a long queue from refusing purchases.
	growthQueueLimit = 100_000_000
	// growthSpareFiles are the open files that a process needs in addition to its connections.
	growthSpareFiles = 200
)

// growthSettings are the settings of each group, from the smallest to the largest.
type growthSettings struct {
	items, queued, rows, connections, processes []int
	embeddedItems, embeddedOrders               []int

	files uint64 // how many files a process may open
}

// growthSettings returns the settings of a run.
func (s *sizes) growthSettings() (growthSettings, error) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return growthSettings{}, fmt.Errorf("limit of open files: %w", err)
	}
	return growthSettings{
		items:       []int{1, s.scaled(100), s.scaled(1_000)},
		queued:      []int{s.scaled(1_000), s.scaled(1_000_000)},
		rows:        []int{s.scaled(growthFewestRows), s.scaled(s.o.size.rows)},
		connections: []int{16, 128, 1_024, 4_096},
		processes:   []int{1, 2, 4},

		embeddedItems:  []int{1, s.scaled(1_000), s.scaled(10_000)},
		embeddedOrders: []int{0, s.scaled(500_000)},

		files: files.Max, // Go programs raise their limit to this
	}, nil
}

// growthFewestRows is the smallest number of rows in the database.
const growthFewestRows = 10_000

// growth measures what one setting after another does to the rate and the latency of purchases,
// while all others stay as they are: one item, no backlog, few rows, -connections, one process.
type growth struct {
	rotation

	settings growthSettings
}

// growthGroup is a list of settings of the same thing.
type growthGroup struct {
	name string // for -groups
	// open starts the rigs of the group and returns its rows, from the smallest setting on.
	open func(ctx context.Context, g *growth) ([]*growthRow, error)
	// untargeted says why there is no BAR line; empty: there is one.
	untargeted string

	rows []*growthRow // the result of run
}

// growthGroups returns all groups in the order in which they run.
func growthGroups() []growthGroup {
	return []growthGroup{
		{name: "items", open: openItems},
		{name: "queued", open: openQueued},
		{name: "rows", open: openRows},
		{name: "connections", open: openConnections},
		{
			name: "processes", open: openProcesses,
			untargeted: "more API processes need more cores than Redis, the worker and the load leave on a small machine",
		},
		{name: "embedded_items", open: openEmbeddedItems},
		{name: "embedded_orders", open: openEmbeddedOrders},
	}
}

// chosenGroups returns the groups named in text, in the order of the list; empty: all.
func chosenGroups(text string) ([]growthGroup, error) {
	all := growthGroups()
	if text == "" {
		return all, nil
	}
	wanted := strings.Split(text, ",")
	for _, name := range wanted {
		if !slices.ContainsFunc(all, func(g growthGroup) bool { return g.name == name }) {
			return nil, fmt.Errorf("-groups: unknown group %q; known: %s", name, strings.Join(growthNames(), ", "))
		}
	}
	return slices.DeleteFunc(all, func(g growthGroup) bool { return !slices.Contains(wanted, g.name) }), nil
}

func growthNames() []string {
	var names []string
	for _, g := range growthGroups() {
		names = append(names, g.name)
	}
	return names
}

// measureGrowth measures purchases while one thing at a time grows: the items on sale, the
// orders in the queue, the rows in the database, the connections, the API processes; and with
// the embedded engine the items on sale and the orders of a sale.
func measureGrowth(ctx context.Context, s *sizes) error {
	settings, err := s.growthSettings()
	if err != nil {
		return err
	}
	return s.grow(ctx, settings)
}

func (s *sizes) grow(ctx context.Context, settings growthSettings) error {
	groups, err := chosenGroups(s.o.size.groups)
	if err != nil {
		return err
	}
	var errs []error
	var all []*growthRow
	for i, group := range groups {
		g := &growth{rotation: rotation{s: s}, settings: settings}
		if groups[i].rows, err = g.run(ctx, group); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", group.name, err))
		}
		all = append(all, groups[i].rows...)
		if ctx.Err() != nil {
			break // interrupted: the other groups would only add errors
		}
	}
	printGrowth(s, all)
	for _, group := range groups {
		if group.untargeted != "" {
			s.say("%s have no target: %s", group.name, group.untargeted)
			continue
		}
		for _, r := range compareGrowth(group.rows) {
			if r.last {
				s.atLeast("growth_"+r.row.group+"_rate", r.rate, growthRate)
			}
		}
	}
	return errors.Join(errs...)
}

// run measures one group. Its settings take turns.
func (g *growth) run(ctx context.Context, group growthGroup) (rows []*growthRow, err error) {
	defer func() {
		err = errors.Join(err, g.resume())
		for _, r := range g.rigs {
			err = errors.Join(err, r.close())
		}
	}()
	if rows, err = group.open(ctx, g); err != nil {
		return nil, err
	}
	for round := range g.s.o.size.turns {
		for _, row := range runner.Turn(rows, round) {
			if err := g.turn(ctx, row); err != nil {
				return nil, fmt.Errorf("%s %s, round %d: %w", row.group, row.setting, round+1, err)
			}
		}
	}
	return rows, nil
}

// turn measures one setting once.
func (g *growth) turn(ctx context.Context, row *growthRow) error {
	if err := g.only(row.rig); err != nil {
		return err
	}
	p := row.load
	if row.queued > 0 {
		if err := g.fill(ctx, row.rig, p, row.queued); err != nil {
			return err
		}
	}
	p.First = g.next
	began := time.Now()
	b, err := g.s.crowd.Measure(ctx, p, min(growthSettle, g.s.o.phase), g.s.o.phase)
	if err != nil {
		return err
	}
	g.next = b.Next
	if b.Codes[row.answer()] == 0 {
		return fmt.Errorf("no answer %d: %v", row.answer(), b.Codes)
	}
	row.add(b)
	row.sent += b.Next - p.First
	switch {
	case row.queued == 0:
		if _, err := row.rig.waitDrained(ctx); err != nil {
			return err
		}
		row.took += time.Since(began)
	case row.clear:
		return row.rig.clear(ctx)
	}
	return nil
}

// rig starts a rig with the given history and number of API processes, with all its sales
// loaded.
func (g *growth) rig(ctx context.Context, h history.History, processes int) (*rig, error) {
	began := time.Now()
	r, err := g.s.newRig(ctx, h)
	if err != nil {
		return nil, err
	}
	g.rigs = append(g.rigs, r)
	limit := []string{"--queue-limit", strconv.Itoa(growthQueueLimit)}
	if err := errors.Join(r.serve(ctx, limit...), r.serveAlso(ctx, processes-1, limit...)); err != nil {
		return nil, err
	}
	if err := r.warm(ctx, history.LiveIDs(h.Live), 4); err != nil {
		return nil, err
	}
	g.s.say("ready after %.1f s: items on sale %d, rows %d, API processes %d", time.Since(began).Seconds(), h.Live, h.Orders(), processes)
	return r, nil
}

// working is rig with a worker.
func (g *growth) working(ctx context.Context, h history.History, processes int) (*rig, error) {
	r, err := g.rig(ctx, h, processes)
	if err == nil {
		err = r.work(ctx)
	}
	return r, err
}

// row returns a row of a group that buys the rig's first items.
func (g *growth) row(group, setting string, r *rig, items int) *growthRow {
	p := load.Purchases{Addr: r.world.API.Addr, Items: history.LiveIDs(items), Connections: g.s.o.connections, Async: true}
	for _, also := range r.world.Also {
		p.Also = append(p.Also, also.Addr)
	}
	return &growthRow{group: group, setting: setting, rig: r, load: p}
}

func openItems(ctx context.Context, g *growth) (rows []*growthRow, err error) {
	for _, n := range g.settings.items {
		r, err := g.working(ctx, history.History{Live: n}, 1)
		if err != nil {
			return nil, err
		}
		rows = append(rows, g.row("items", strconv.Itoa(n), r, n))
	}
	return rows, nil
}

// openQueued opens rigs without a worker. The shorter queues are emptied after each turn,
// because the turn adds orders.
func openQueued(ctx context.Context, g *growth) (rows []*growthRow, err error) {
	for i, n := range g.settings.queued {
		r, err := g.rig(ctx, history.History{Live: 1}, 1)
		if err != nil {
			return nil, err
		}
		row := g.row("queued", strconv.Itoa(n), r, 1)
		row.queued, row.clear = n, i < len(g.settings.queued)-1
		rows = append(rows, row)
	}
	return rows, nil
}

// openRows opens rigs with a history. The database delays the answers 201 but not 202, so both
// are measured.
func openRows(ctx context.Context, g *growth) (rows []*growthRow, err error) {
	var committed []*growthRow
	for _, n := range g.settings.rows {
		perSale := min(n, growthSaleOrders)
		h := history.History{Ended: n / perSale, EndedOrders: perSale, Live: 1}
		r, err := g.working(ctx, h, 1)
		if err != nil {
			return nil, err
		}
		rows = append(rows, g.row("rows", strconv.Itoa(h.Orders()), r, 1))
		row := g.row("rows_committed", strconv.Itoa(h.Orders()), r, 1)
		row.load.Async = false
		committed = append(committed, row)
	}
	return append(rows, committed...), nil
}

// openConnections opens one rig for all settings.
func openConnections(ctx context.Context, g *growth) (rows []*growthRow, err error) {
	r, err := g.working(ctx, history.History{Live: 1}, 1)
	if err != nil {
		return nil, err
	}
	for _, n := range g.settings.connections {
		if uint64(n+growthSpareFiles) > g.settings.files {
			g.s.say("%d connections are left out: they need %d open files, and the limit is %d (raise it with ulimit -n)",
				n, n+growthSpareFiles, g.settings.files)
			continue
		}
		row := g.row("connections", strconv.Itoa(n), r, 1)
		row.load.Connections = n
		rows = append(rows, row)
	}
	return rows, nil
}

func openProcesses(ctx context.Context, g *growth) (rows []*growthRow, err error) {
	for _, n := range g.settings.processes {
		r, err := g.working(ctx, history.History{Live: 1}, n)
		if err != nil {
			return nil, err
		}
		rows = append(rows, g.row("processes", strconv.Itoa(n), r, 1))
	}
	return rows, nil
}

// growthRow is one setting and what was measured with it, over all turns.
type growthRow struct {
	group, setting string
	rig            *rig
	load           load.Purchases
	queued         int  // orders in the queue before a turn; 0: a worker empties it
	clear          bool // empty the queue after a turn

	rate, p50, p99 []float64 // one value a turn: answers a second, milliseconds

	others int           // answers with another status
	sent   int64         // purchases in all turns, also before and after the measurement
	took   time.Duration // until their orders were committed; 0 without a worker
}

// answer is the status of the purchases that count.
func (r *growthRow) answer() int {
	if r.load.Async {
		return http.StatusAccepted
	}
	return http.StatusCreated
}

// add adds what was measured in a turn.
func (r *growthRow) add(b *load.Bought) {
	r.rate = append(r.rate, b.Rate(r.answer()))
	r.p50, r.p99 = append(r.p50, b.Quantile(50)), append(r.p99, b.Quantile(99))
	for code, n := range b.Codes {
		if code != r.answer() {
			r.others += n
		}
	}
}

// growthRatio is a row relative to the first row of its group.
type growthRatio struct {
	row       *growthRow
	last      bool // the largest setting of several
	rate, p99 float64
}

// compareGrowth compares the rows of each group.
func compareGrowth(rows []*growthRow) []growthRatio {
	ratios := make([]growthRatio, len(rows))
	first := 0
	for i, r := range rows {
		if r.group != rows[first].group {
			first = i
		}
		one := rows[first]
		ratios[i] = growthRatio{
			row: r, last: i > first && (i+1 == len(rows) || rows[i+1].group != r.group),
			rate: median(r.rate) / median(one.rate), p99: median(r.p99) / median(one.p99),
		}
	}
	return ratios
}

// printGrowth prints the table, with medians over the turns.
func printGrowth(s *sizes, rows []*growthRow) {
	s.say("%-15s %9s  answer  accepted/s  to first  p50 ms  p99 ms  to first  committed/s     sold  others", "group", "setting")
	for _, r := range compareGrowth(rows) {
		row := r.row
		committed := "-"
		if row.took > 0 {
			committed = fmt.Sprintf("%.0f", float64(row.sent)/row.took.Seconds())
		}
		s.say("%-15s %9s  %6d  %10.0f  %8.2f  %6.1f  %6.1f  %8.2f  %11s  %7d  %6d", row.group, row.setting, row.answer(),
			median(row.rate), r.rate, median(row.p50), median(row.p99), r.p99, committed, row.sent, row.others)
	}
}
