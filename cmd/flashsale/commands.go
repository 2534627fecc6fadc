package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/admin"
	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/handler/auth"
	"flashsale/migrations"
	"flashsale/order"
)

// newRoot builds the command line. Without a command it serves.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "flashsale",
		Short: "Sell a fixed stock to a crowd that arrives in one second",
		Long: "flashsale sells a fixed stock to a crowd that arrives in one second.\n\n" +
			"Without a command it serves: API and worker in one process, on an embedded Redis and a\n" +
			"SQLite file unless told otherwise. Each setting may be given as a flag, as an environment\n" +
			"variable (--ops-addr is FLASHSALE_OPS_ADDR), or in a YAML file named by --config.",
		Args:          config.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          runRole(role{command: "serve", api: true, worker: true}),
		Version:       thisBuild().String(),
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(config.FlagError)
	config.DefineFlags(root.PersistentFlags())
	root.AddCommand(
		&cobra.Command{
			Use: "serve", Short: "Run API and worker in one process", Args: config.NoArgs,
			RunE: runRole(role{command: "serve", api: true, worker: true}),
		},
		&cobra.Command{
			Use: "api", Short: "Run the API alone; it needs a Redis and a migrated database", Args: config.NoArgs,
			RunE: runRole(role{command: "api", api: true}),
		},
		&cobra.Command{
			Use: "worker", Short: "Run a worker alone; it needs a Redis and a migrated database", Args: config.NoArgs,
			RunE: runRole(role{command: "worker", worker: true}),
		},
		newMigrate(), admin.Item(), admin.Order(), admin.Payment(), admin.Queue(), admin.Reconcile(), newToken(), newConfig(), newDoctor(),
		newBackup(), newRestore(), newRecover(),
	)
	return root
}

func runRole(r role) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, _ []string) error {
		s, err := config.Load(c.Flags())
		if err != nil {
			return err
		}
		return runApp(c.Context(), s, r, c.OutOrStdout())
	}
}

// migration runs fn with the migrator of a database that exists, or that may be
// created.
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
		return fn(c, m)
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
	down := &cobra.Command{Use: "down", Short: "Undo the newest migration, and drop the data it holds", Args: config.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if !yes {
				return config.Usage(errors.New("migrate down drops the newest migration's tables with all that is in them, orders included; " +
					"stop every process, keep a copy of the database, and say --yes"))

			}
			return undo(c, args)
		}}
	down.Flags().BoolVar(&yes, "yes", false, "drop the data")
	status := &cobra.Command{Use: "status", Short: "List the migrations; exit 1 when one is pending or there is no database", Args: config.NoArgs,
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
	return config.Group("migrate", "Change the database's schema", up, down, status)
}

func newToken() *cobra.Command {
	var sub, roleName string
	var ttl time.Duration
	c := &cobra.Command{
		Use: "token", Short: "Sign a token with the configured key", Args: config.NoArgs,
		Example: "  flashsale token --sub alice --role buyer --ttl 1h",
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := config.Load(c.Flags())
			if err != nil {
				return err
			}
			switch {
			case !auth.ValidSubject(sub):
				return config.Usage(fmt.Errorf("--sub %q: use 1 to 128 of A-Z a-z 0-9 . _ : @ -", sub))
			case !auth.Role(roleName).Valid():
				return config.Usage(fmt.Errorf("--role %q: use buyer, admin or service", roleName))
			case ttl < time.Second:
				return config.Usage(fmt.Errorf("--ttl %v: use a second or more", ttl))
			}
			key, terms, err := s.Signer(auth.Role(roleName))
			if err != nil {
				return err
			}
			token, err := s.Sign(key, terms, sub, auth.Role(roleName), ttl)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), token)
			return err
		},
	}
	c.Flags().StringVar(&sub, "sub", "", "whom the token names")
	c.Flags().StringVar(&roleName, "role", string(auth.RoleBuyer), "buyer, admin or service")
	c.Flags().DurationVar(&ttl, "ttl", time.Hour, "how long it is good")
	return c
}

// demoItem is what serve sells when there is nothing else.
var demoItem = order.NewItem{
	ID: "demo", Name: "Demo sneaker", Description: "A hundred pairs, one each.",
	PriceMinor: 12900, Currency: "EUR", Stock: 100, PerUserLimit: 1, By: order.By{Actor: "flashsale serve"},
}

// openDemo creates the demo sale on an empty database.
func (a *app) openDemo(ctx context.Context) error {
	items, err := a.store.Items(ctx)
	if err != nil || len(items) > 0 {
		return err
	}
	_, err = a.service.CreateItem(ctx, demoItem)
	if errors.Is(err, order.ErrItemExists) {
		return nil // another process was quicker
	}
	return err
}
