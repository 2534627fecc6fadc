package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
	"flashsale/order/backup"
)

// databaseSettings are those of commands that only use the database.
var databaseSettings = []string{"db", "data-dir", "config"}

func newBackup() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "backup FILE", Short: "Copy the database to a file while the service runs", Args: oneFile,
		Long: "backup copies the database that --db names to FILE: one consistent snapshot, including\n" +
			"commits that are still in the write-ahead log. The service keeps selling meanwhile. FILE is\n" +
			"verified and synced before it gets its name, and only its owner can read it (mode 0600).\n" +
			"It contains buyers' data. It does not contain Redis, the settings or the keys.",
		Example: "  flashsale backup /var/backups/flashsale/shop-$(date -u +%Y%m%dT%H%M%SZ).db",
		RunE: func(c *cobra.Command, args []string) error {
			s, path, err := sqliteFile(c, "copy a Postgres database with pg_dump --format=custom, see docs/backup.md")
			if err != nil {
				return err
			}
			began := time.Now()
			made, err := backup.Take(c.Context(), path, args[0], force)
			if err != nil {
				return backupError(c, s, args[0], err)
			}
			return printReport(c.OutOrStdout(), append(summaryLines("backup", made), [2]string{"took", since(began)}))
		},
	}
	c.Flags().BoolVar(&force, "force", false, "replace FILE if it exists")
	return config.Reads(c, databaseSettings...)
}

// oneFile requires exactly one argument, the name of a file.
func oneFile(c *cobra.Command, args []string) error {
	switch {
	case len(args) != 1:
		return config.Usage(fmt.Errorf("%s needs one argument, FILE, and got %d; see %s --help", config.CommandName(c), len(args), c.CommandPath()))
	case args[0] == "":
		return config.Usage(errors.New("argument FILE: value \"\": it is empty; name a file"))
	}
	return nil
}

// sqliteFile returns the settings and the path of the database. For Postgres, which has its
// own tools for this, it returns an error with the fix.
func sqliteFile(c *cobra.Command, postgresFix string) (*config.Settings, string, error) {
	s, err := config.Merge(c.Flags())
	if err != nil {
		return nil, "", err
	}
	if s.Postgres() {
		return nil, "", config.BadSetting("db", s.DB, c.CommandPath()+" works on SQLite files", postgresFix)
	}
	if err := s.Validate(); err != nil {
		return nil, "", err
	}
	return s, strings.TrimPrefix(s.DB, "sqlite:"), nil
}

// backupError adds the setting or the argument that named the file that caused err.
func backupError(c *cobra.Command, s *config.Settings, file string, err error) error {
	if c.Context().Err() != nil {
		return errors.New("interrupted; nothing was changed")
	}
	var f *backup.Fault
	switch {
	case !errors.As(err, &f):
		return err
	case f.Database:
		return config.FailedSetting("db", s.DB, f.Cause.Error(), f.Fix)
	default:
		return fmt.Errorf("argument FILE: value %q: %w", file, err)
	}
}

// summaryLines describe a database file; done says what was done with it.
func summaryLines(done string, s backup.Summary) [][2]string {
	newest := "none"
	if !s.Newest.IsZero() {
		newest = s.Newest.Format(time.RFC3339Nano)
	}
	return [][2]string{
		{done, s.Path},
		{"size", fmt.Sprintf("%d bytes", s.Bytes)},
		{"schema", fmt.Sprint(s.Schema)},
		{"orders", fmt.Sprint(s.Orders)},
		{"newest order", newest},
	}
}

func since(began time.Time) string { return time.Since(began).Round(time.Millisecond).String() }

func printReport(out io.Writer, lines [][2]string) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	for _, l := range lines {
		fmt.Fprintf(w, "%s\t%s\n", l[0], l[1])
	}
	return w.Flush()
}
