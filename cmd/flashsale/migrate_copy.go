package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/internal/plural"
	"flashsale/internal/postgresurl"
	"flashsale/order/transfer"
)

// progressEvery is the interval between two lines of progress.
const progressEvery = 2 * time.Second

func newMigrateCopy() *cobra.Command {
	m := &move{now: time.Now}
	c := &cobra.Command{
		Use: "copy --from DATABASE --to DATABASE", Short: "Move the shop to another database; the service must be stopped", Args: config.NoArgs,
		Long: "copy moves the shop from one database to another: from SQLite to PostgreSQL, or back. Each\n" +
			"is sqlite:PATH or postgres://user@host/database, and --db has no effect. The target must be\n" +
			"empty; its tables are created. Redis stays, and is used with the new database afterwards.\n\n" +
			"Every process must be stopped. The copy is compared with the source: the rows of each table,\n" +
			"their checksums, and the stock of each item. Then the source is marked as moved, and no\n" +
			"process starts on it any more. Until then the target is marked as unfinished. After an\n" +
			"interruption, run the same command again: it starts over. To move back, exchange --from and\n" +
			"--to and add --replace. Exit code 1 if anything differs.",
		Example: "  flashsale migrate copy --from sqlite:flashsale-data/flashsale.db --to postgres://shop@db.example/shop",
		RunE:    func(c *cobra.Command, _ []string) error { return m.run(c) },
	}
	c.Flags().StringVar(&m.from, "from", "", "database of the shop")
	c.Flags().StringVar(&m.to, "to", "", "database that it moves to")
	c.Flags().BoolVar(&m.replace, "replace", false, "delete the rows of a target from which this shop was moved before")
	return config.Reads(c, "data-dir", "config")
}

// move is one run of the command migrate copy.
type move struct {
	from, to string
	replace  bool
	now      func() time.Time
}

func (m *move) run(c *cobra.Command) (err error) {
	s, err := config.Merge(c.Flags())
	if err != nil {
		return err
	}
	var sides [2]*config.Settings
	for i, f := range []struct{ name, value string }{{"--from", m.from}, {"--to", m.to}} {
		if err := validDatabase(f.name, f.value); err != nil {
			return err
		}
		one := *s
		one.DB = f.value
		sides[i] = &one
	}
	if place(m.from) == place(m.to) {
		return config.Usage(errors.New("--from and --to name the same database; name another one"))
	}
	if err := backend.NeedDatabase(sides[0]); err != nil {
		return fmt.Errorf("--from %s: the database does not exist; correct the path", m.from)
	}
	if folder := backend.MissingFolder(sides[1]); folder != "" {
		cause, fix := config.MissingFolder(folder)
		return fmt.Errorf("--to %s: %s; %s", m.to, cause, fix)
	}
	for i, name := range []string{"--from", "--to"} {
		if cause, fix := backend.SchemaFault(backend.RefuseForeign(c.Context(), sides[i])); cause != "" {
			return fmt.Errorf("%s %s: %s; %s", name, place(sides[i].DB), cause, fix)
		}
	}
	unlockSource, err := lockDatabase(c.Context(), sides[0])
	if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	defer func() { err = errors.Join(err, unlockSource()) }()
	unlockTarget, err := lockDatabase(c.Context(), sides[1])
	if err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	defer func() { err = errors.Join(err, unlockTarget()) }()
	began := m.now()
	p := &progress{out: c.ErrOrStderr(), now: m.now}
	report, err := transfer.Copy(c.Context(), transfer.Config{From: m.from, To: m.to, Place: place(m.to), Replace: m.replace, Progress: p.add})
	if len(report.Tables) > 0 {
		err = errors.Join(err, printComparison(c.OutOrStdout(), &report))
	}
	if err != nil {
		return m.failed(c.Context(), err)
	}
	if report.Completed {
		fmt.Fprintln(c.OutOrStdout(), "an earlier copy was complete and verified; it is usable now")
	}
	return printReport(c.OutOrStdout(), [][2]string{
		{"moved to", place(m.to)},
		{"took", m.now().Sub(began).Round(time.Millisecond).String()},
		{"next 1", "set --db to the new database for every process, with the same --redis, and start the service"},
		{"next 2", "flashsale reconcile compares the counts with Redis"},
		{"next 3", "keep the old database until then: it is marked as moved, and no process starts on it"},
	})
}

// failed explains an error of a copy.
func (m *move) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted; the source is unchanged, and the target is unusable until the same command has finished")
	}
	var f *transfer.Fault
	switch {
	case errors.Is(err, transfer.ErrDiffers):
		return fmt.Errorf("%w; the source is unchanged and the target stays marked as unfinished: run the command again, and report this", err)
	case !errors.As(err, &f):
		return hidden(err, m.from, m.to)
	case f.Target:
		return hidden(fmt.Errorf("--to %s: %w", m.to, err), m.from, m.to)
	default:
		return hidden(fmt.Errorf("--from %s: %w", m.from, err), m.from, m.to)
	}
}

// hidden is an error whose text has no password of these databases.
func hidden(err error, databases ...string) error {
	message := backend.Cause(err)
	for _, d := range databases {
		message = strings.ReplaceAll(message, d, config.RedactURL(d))
	}
	return errors.New(message)
}

func validDatabase(flag, value string) error {
	wrong, fix := "", "write sqlite:PATH or postgres://user@host:5432/database"
	path, isFile := strings.CutPrefix(value, "sqlite:")
	switch {
	case value == "":
		wrong = "it is missing"
	case postgresurl.Is(value):
		wrong, fix = postgresurl.Check(value)
	case !isFile || path == "":
		wrong = "unknown kind of database"
	}
	if wrong != "" {
		return config.Usage(fmt.Errorf("%s: value %q: %s; %s", flag, config.RedactURL(value), wrong, fix))
	}
	return nil
}

// lockDatabase keeps the service from starting on a database, and fails if it runs on it.
func lockDatabase(ctx context.Context, s *config.Settings) (unlock func() error, err error) {
	if s.Postgres() {
		var lock *backend.PostgresLock
		if lock, err = backend.LockPostgres(ctx, s, true); err == nil {
			return func() error { return lock.Close(context.WithoutCancel(ctx)) }, nil
		}
	} else {
		var lock *backend.FileLock
		if lock, err = backend.LockSQLite(s, true); err == nil {
			return lock.Close, nil
		}
	}
	if errors.Is(err, backend.ErrServed) {
		err = config.FailedSetting("db", s.DB, backend.ErrServed.Error(), "stop every flashsale api, worker and serve of it, then run this command again")
	}
	return nil, err
}

// place names a database in a message that any user may read.
func place(setting string) string {
	path, isFile := strings.CutPrefix(setting, "sqlite:")
	if !isFile {
		return config.RedactURL(setting)
	}
	if whole, err := filepath.Abs(path); err == nil {
		path = whole
	}
	return "sqlite:" + path
}

// progress prints a line every few seconds, and after each table.
type progress struct {
	out     io.Writer
	now     func() time.Time
	current transfer.Progress
	began   time.Time // with the table
	printed time.Time
}

func (p *progress) add(step transfer.Progress) {
	now := p.now()
	if step.Step != p.current.Step || step.Table != p.current.Table {
		p.began, p.printed = now, now
	}
	p.current = step
	if !step.Done && now.Sub(p.printed) < progressEvery {
		return
	}
	p.printed = now
	rate := ""
	if took := now.Sub(p.began); took > time.Second { // that of a few pages says nothing
		rate = fmt.Sprintf(", %.0f rows/s", float64(step.Rows)/took.Seconds())
	}
	fmt.Fprintf(p.out, "%s %s: %s%s\n", step.Step, step.Table, plural.Count(step.Rows, "row"), rate)
}

// printComparison prints what was verified.
func printComparison(out io.Writer, r *transfer.Report) error {
	const digits = 12 // of a checksum
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "verified\trows\tsha-256\tin the target")
	for _, list := range [][]transfer.Compared{r.Tables, r.Ledger} {
		for i := range list {
			one := &list[i]
			result := "equal"
			if !one.Equal() {
				result = fmt.Sprintf("DIFFERS: %s, %s", plural.Count(one.TargetRows, "row"), one.TargetSum[:digits])
				if one.FirstDifference != "" {
					result += "; first " + one.FirstDifference
				}
			}
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", one.Name, one.Rows, one.Sum[:digits], result)
		}
	}
	return w.Flush()
}
