package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/order/backup"
)

func newRestore() *cobra.Command {
	return config.Reads(&cobra.Command{
		Use: "restore FILE", Short: "Replace the database with a backup; the service must be stopped", Args: oneFile,
		Long: "restore verifies FILE, a backup, and puts a copy of it in the place of the database that\n" +
			"--db names. It refuses while any process has that database open. The old database is kept\n" +
			"beside the new one as NAME.before-restore-TIME. If the command is killed, the old or the new\n" +
			"database is in place, complete; run it again.\n\n" +
			"Unpaid orders can be paid for another day at least: their payments since the backup are lost,\n" +
			"and the payment provider must report them again.",
		Example: "  flashsale restore /var/backups/flashsale/shop-20260102T030405Z.db",
		RunE: func(c *cobra.Command, args []string) (err error) {
			s, path, err := sqliteFile(c, "restore a Postgres database with pg_restore, see docs/backup.md")
			if err != nil {
				return err
			}
			// A wrong name must not leave a lock file behind.
			if _, err := os.Stat(args[0]); err != nil {
				return fmt.Errorf("argument FILE: value %q: %w; name a file that flashsale backup has written", args[0], err)
			}
			// No process may start on the database meanwhile.
			lock, err := backend.LockSQLite(s, true)
			if errors.Is(err, backend.ErrServed) {
				err = backup.InUse(path)
			}
			if err != nil {
				return backupError(c, s, args[0], err)
			}
			began := time.Now()
			made, err := backup.Restore(c.Context(), args[0], path, began)
			if err != nil {
				// What the lock has created would look like a shop that was there.
				return errors.Join(backupError(c, s, args[0], err), lock.Abandon())
			}
			defer func() { err = errors.Join(err, lock.Close()) }()
			lines := append([][2]string{{"from", args[0]}}, summaryLines("restored", made.Summary)...)
			if made.Unpaid > 0 {
				lines = append(lines, [2]string{"unpaid orders", fmt.Sprintf("%d, which can be paid until %s or later", made.Unpaid, made.PayUntil.Format(time.RFC3339))})
			}
			if made.Kept != "" {
				lines = append(lines, [2]string{"old database", made.Kept})
			}
			lines = append(lines, [2]string{"took", since(began)})
			for i, step := range nextSteps(made) {
				lines = append(lines, [2]string{fmt.Sprintf("next %d", i+1), step})
			}
			return printReport(c.OutOrStdout(), lines)
		},
	}, databaseSettings...)
}

// nextSteps are the steps for the operator after a restore.
func nextSteps(r backup.Restored) []string {
	var steps []string
	if r.Schema < r.Latest {
		steps = append(steps, fmt.Sprintf("flashsale migrate up: the schema is %d, this program needs %d", r.Schema, r.Latest))
	}
	return append(steps,
		"start the service",
		"sales whose database is older than Redis stay stopped until flashsale recover --from redis|database",
		"payments and erasures since the backup are not in it: compare with the payment provider, repeat the erasures")
}
