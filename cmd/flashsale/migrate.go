package main

import (
	"errors"
	"fmt"
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
		store, err := backend.OpenDatabase(c.Context(), s, create)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, store.Close()) }()
		m, err := backend.Migrator(store)
		if err != nil {
			return err
		}
		return backend.SchemaError(s, fn(c, m))
	}
}

func newMigrate() *cobra.Command {
	up := &cobra.Command{Use: "up", Short: "Apply every pending migration", Args: config.NoArgs,
		RunE: migration(true, func(c *cobra.Command, m *migrations.Migrator) error {
			n, err := m.Up(c.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "applied %d\n", n)
			return err
		})}
	var yes bool
	undo := migration(false, func(c *cobra.Command, m *migrations.Migrator) error {
		undone, err := m.Down(c.Context())
		if err != nil {
			return err
		}
		text := "undone 1"
		if !undone {
			text = "nothing to undo"
		}
		_, err = fmt.Fprintln(c.OutOrStdout(), text)
		return err
	})
	down := &cobra.Command{Use: "down", Short: "Undo the newest migration, and drop its data", Args: config.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if !yes {
				return config.Usage(errors.New("migrate down drops the newest migration's tables and all their data, orders included; " +
					"stop every process, back up the database, and add --yes"))

			}
			return undo(c, args)
		}}
	down.Flags().BoolVar(&yes, "yes", false, "drop the data")
	status := &cobra.Command{Use: "status", Short: "List the migrations; exit 1 if one is pending or there is no database", Args: config.NoArgs,
		RunE: migration(false, func(c *cobra.Command, m *migrations.Migrator) error {
			steps, err := m.Status(c.Context())
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
			for _, s := range steps {
				state := "pending"
				if s.Applied {
					state = "applied"
				}
				fmt.Fprintf(w, "%d\t%s\t%s\n", s.Version, state, s.Name)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			return m.Check(c.Context())
		})}
	return config.Group("migrate", "Change the database schema", up, down, status, newMigrateCopy())
}
