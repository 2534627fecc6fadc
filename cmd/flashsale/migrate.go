package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/migrations"
)

// migration returns a command function that runs fn with the database's migrator. create allows
// a new database.
func migration(create bool, fn func(c *cobra.Command, m *migrations.Migrator) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, _ []string) (err error) {
		s, err := config.Load(c.Flags())
		if err != nil {
			return err
		}
		return migrate(c, s, create, fn)
	}
}

func migrate(c *cobra.Command, s *config.Settings, create bool, fn func(c *cobra.Command, m *migrations.Migrator) error) (err error) {
	store, err := backend.OpenDatabase(c.Context(), s, create)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	m, err := backend.Migrator(store)
	if err != nil {
		return err
	}
	m.Waiting = func() { c.PrintErrln("waiting: " + backend.MigrationWaits) }
	return backend.SchemaError(s, fn(c, m))
}

// undo undoes the newest migration. No process may use the database meanwhile: it would lose
// columns that its statements name.
func undo(c *cobra.Command) (err error) {
	s, err := config.Load(c.Flags())
	if err != nil {
		return err
	}
	// A wrong name must not leave a lock file behind.
	if err := backend.NeedDatabase(s); err != nil {
		return err
	}
	unlock, err := lockDatabase(c.Context(), s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return migrate(c, s, false, func(c *cobra.Command, m *migrations.Migrator) error {
		undone, err := m.Down(c.Context())
		switch {
		case errors.Is(err, migrations.ErrDivided):
			return config.FailedSetting("db", s.DB, err.Error(), "keep this version, or restore a backup that has no such item")
		case err != nil:
			return err
		}
		text := "undone 1"
		if !undone {
			text = "nothing to undo"
		}
		_, err = fmt.Fprintln(c.OutOrStdout(), text)
		return err
	})
}

func newMigrate() *cobra.Command {
	up := &cobra.Command{Use: "up", Short: "Apply every pending migration", Args: config.NoArgs,
		RunE: migration(true, func(c *cobra.Command, m *migrations.Migrator) error {
			n, err := m.Up(c.Context())
			if err != nil {
				return err
			}
			text := fmt.Sprintf("applied %d", n)
			if n == 0 {
				text = "nothing to apply: the schema is up to date"
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), text)
			return err
		})}
	var yes bool
	down := &cobra.Command{Use: "down", Short: "Undo the newest migration, with the data that it added; the service must be stopped", Args: config.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !yes {
				return config.Usage(errors.New("migrate down undoes the newest migration, and drops the tables and columns that it added, with their data; " +
					"stop every process, back up the database, and add --yes"))
			}
			return undo(c)
		}}
	down.Flags().BoolVar(&yes, "yes", false, "drop the data")
	var asJSON bool
	status := &cobra.Command{Use: "status", Short: "List the migrations; exit 1 if one is pending or there is no database", Args: config.NoArgs,
		RunE: migration(false, func(c *cobra.Command, m *migrations.Migrator) error {
			steps, err := m.Status(c.Context())
			if err != nil {
				return err
			}
			if err := printSteps(c.OutOrStdout(), steps, asJSON); err != nil {
				return err
			}
			return m.Check(c.Context())
		})}
	status.Flags().BoolVar(&asJSON, "json", false, "print the migrations as one line of JSON")
	return config.Reads(config.Group("migrate", "Change the database schema", up, down, status, newMigrateCopy()), databaseSettings...)
}

// printSteps prints the migrations.
func printSteps(out io.Writer, steps []migrations.Step, asJSON bool) error {
	if asJSON {
		type step struct {
			Version int64  `json:"version"`
			Name    string `json:"name"`
			Applied bool   `json:"applied"`
		}
		list := make([]step, 0, len(steps))
		for _, s := range steps {
			list = append(list, step{s.Version, s.Name, s.Applied})
		}
		return json.NewEncoder(out).Encode(map[string][]step{"migrations": list})
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	for _, s := range steps {
		state := "pending"
		if s.Applied {
			state = "applied"
		}
		fmt.Fprintf(w, "%d\t%s\t%s\n", s.Version, state, s.Name)
	}
	return w.Flush()
}
