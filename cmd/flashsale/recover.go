package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"flashsale/catalog"
	"flashsale/cmd/flashsale/admin"
	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/internal/breaker"
	"flashsale/internal/bucket"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/recovery"
	"flashsale/order/store"
	"flashsale/queue"
)

func newRecover() *cobra.Command {
	var from, item, list string
	c := &cobra.Command{
		Use: "recover --from redis|database", Short: "Resume sales that are stopped because the database is older than Redis", Args: config.NoArgs,
		Long: "recover resumes sales that are stopped because the database is older than Redis, for example after a backup was restored.\n\n" +
			"With --from redis, Redis is right: orders that only Redis knows are confirmed again in the database,\n" +
			"and orders whose units were returned in Redis are cancelled there. With --from database, the database\n" +
			"is right: orders that only Redis knows are discarded, and their units can be sold again.\n\n" +
			"Every order concerned is written to a file, or with --list - to standard output, one line of JSON each. Payments since the backup are lost\n" +
			"in both cases; unpaid orders get their payment window again, and a day at least, so that the payment provider\n" +
			"can repeat them. The service may run meanwhile.",
		Example: "  flashsale recover --from redis\n  flashsale recover --from database --item drop-1",
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := config.Load(c.Flags())
			if err != nil {
				return err
			}
			decision := recovery.RecoverFrom(from)
			switch {
			case decision != recovery.RecoverFromRedis && decision != recovery.RecoverFromDatabase:
				return config.Usage(fmt.Errorf("--from %q: use redis or database; see %s --help", from, c.CommandPath()))
			case s.Redis == config.EmbeddedRedis:
				return config.BadSetting("redis", s.Redis, "the embedded engine keeps no data across a restart, so no database is older than it",
					"name the Redis of the service")
			}
			if err := config.NoEmpty(c, "item", "list"); err != nil {
				return err
			}
			r := &recoverRun{settings: s, decision: decision, item: item, list: list, now: time.Now}
			return r.run(c)
		},
	}
	f := c.Flags()
	f.StringVar(&from, "from", "", "the side that is right: redis or database")
	f.StringVar(&item, "item", "", "recover only this item (default: all stopped sales)")
	f.StringVar(&list, "list", "", "file for the list of affected orders; - prints it to standard output, and all else to standard error (default: recovered-orders-TIME.jsonl in the data directory)")
	return config.Reads(c, "db", "redis", "data-dir", "partitions", "config")
}

// recoverRun is one run of the command recover.
type recoverRun struct {
	settings *config.Settings
	decision recovery.RecoverFrom
	item     string
	list     string
	now      func() time.Time
}

func (r *recoverRun) run(c *cobra.Command) (err error) {
	ctx, s := c.Context(), r.settings
	backend.LogRedis(zerolog.Nop()) // the error contains the same
	if err := backend.NeedDatabase(s); err != nil {
		return err
	}
	rdb, closers, err := backend.OpenRedis(s.Redis, breaker.New(breaker.Config{}), nil)
	if err != nil {
		return err
	}
	defer func() {
		for _, done := range closers {
			err = errors.Join(err, done())
		}
	}()
	if err := backend.CheckRedis(ctx, s.Redis, rdb, func(string) {}); err != nil {
		return err
	}
	partitions, err := inventory.RecordedPartitions(ctx, rdb)
	if err != nil {
		return err
	}
	if partitions == 0 {
		partitions = s.Partitions
	}
	clock := inventory.NewClock(rdb, partitions, r.now)
	if err := clock.Measure(ctx); err != nil {
		return err
	}
	store, err := backend.OpenDatabase(ctx, s, false, store.WithClock(clock))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := backend.CheckSchema(ctx, store); err != nil {
		return backend.SchemaError(s, err)
	}
	if err := matchLineage(ctx, s, store, rdb); err != nil {
		return err
	}
	return r.decide(c, store, rdb, partitions)
}

// matchLineage fails if Redis belongs to another database.
func matchLineage(ctx context.Context, s *config.Settings, db *store.Store, rdb redis.UniversalClient) error {
	lineage, err := store.Lineage(ctx, db)
	if err != nil {
		return err
	}
	return backend.LineageError(s, inventory.MatchLineage(ctx, rdb, lineage))
}

// decide finds the stopped items and applies the decision.
func (r *recoverRun) decide(c *cobra.Command, db *store.Store, rdb redis.UniversalClient, partitions int) (err error) {
	ctx := c.Context()
	h, err := store.NewHighWater(ctx, store.HighWaterConfig{Store: db, Redis: rdb, Partitions: partitions})
	if err != nil {
		return err
	}
	if err := h.Check(ctx); err != nil {
		return err
	}
	all := h.Stopped()
	stopped := all
	if r.item != "" {
		stopped = slices.DeleteFunc(slices.Clone(all), func(b store.Behind) bool { return bucket.Item(b.ItemID) != bucket.Item(r.item) })
		if len(stopped) == 0 { // a stopped item may be missing in the database
			if err := r.needItem(ctx, db, itemsOf(all)); err != nil {
				return err
			}
		}
	}
	switch {
	case len(all) == 0:
		to := c.OutOrStdout()
		if r.list == "-" { // only the list goes there
			to = c.ErrOrStderr()
		}
		_, err := fmt.Fprintln(to, "no sale is stopped")
		return err
	case len(stopped) == 0:
		return fmt.Errorf("the sale of %s is not stopped; those of %s are", r.item, strings.Join(itemsOf(all), ", "))
	}
	tasks := make([]order.Queued, partitions)
	for p := range tasks {
		q, err := queue.New(rdb, queue.Config{Prefix: inventory.QueuePrefix(p, partitions)})
		if err != nil {
			return err
		}
		tasks[p] = accepted.NewOrders(q)
	}
	path := r.list
	rc := recovery.RecovererConfig{
		Store: db, Redis: rdb, Partitions: partitions, Tasks: tasks, HighWater: h, By: order.By{Actor: admin.Operator()},
	}
	if path == "-" { // the files of a container end with it
		buffer := bufio.NewWriter(c.OutOrStdout())
		rc.List, rc.Sync = buffer, buffer.Flush
		return r.report(ctx, c.ErrOrStderr(), recovery.NewRecoverer(rc), stopped, "standard output")
	}
	if path == "" {
		path = filepath.Join(r.settings.DataDir, "recovered-orders-"+r.now().UTC().Format("20060102T150405.000Z")+".jsonl")
		if err := config.MakeDataDir(r.settings.DataDir); err != nil {
			return err
		}
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // the operator names it
	if err != nil {
		return config.Usage(fmt.Errorf("--list %s: %w; name a new file in a folder that this process may write to", path, err))
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	buffer := bufio.NewWriter(file)
	rc.List, rc.Sync = buffer, func() error { return errors.Join(buffer.Flush(), file.Sync()) }
	return r.report(ctx, c.OutOrStdout(), recovery.NewRecoverer(rc), stopped, path)
}

// needItem fails if --item names no item. stopped are the items whose sales are stopped.
func (r *recoverRun) needItem(ctx context.Context, db *store.Store, stopped []string) error {
	_, err := store.Item(ctx, db, bucket.Item(r.item))
	switch {
	case !errors.Is(err, catalog.ErrItemNotFound):
		return err
	case len(stopped) == 0:
		return fmt.Errorf("--item %q: there is no such item, and no sale is stopped; flashsale item list shows the ids", r.item)
	}
	return fmt.Errorf("--item %q: there is no such item; the sales of %s are stopped", r.item, strings.Join(stopped, ", "))
}

// itemsOf returns the ids of the items, each once.
func itemsOf(stopped []store.Behind) (ids []string) {
	for _, b := range stopped {
		ids = append(ids, bucket.Item(b.ItemID))
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// report applies the decision, and prints the result for each item to out.
func (r *recoverRun) report(ctx context.Context, out io.Writer, recoverer *recovery.Recoverer, stopped []store.Behind, path string) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "ITEM\tRECREATED\tCANCELLED\tDISCARDED\tREOPENED\tUNREADABLE\tSTOCK TOTAL")
	total, done := 0, 0
	err := recoverer.Recover(ctx, r.decision, stopped, func(i recovery.RecoveredItem) {
		stock := fmt.Sprint(i.TotalAfter)
		if i.TotalBefore != i.TotalAfter {
			stock = fmt.Sprintf("%d (was %d)", i.TotalAfter, i.TotalBefore)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%s\n", i.ItemID, i.Recreated, i.Cancelled, i.Discarded, i.Reopened, i.Unread, stock)
		total += i.Recreated + i.Cancelled + i.Discarded + i.Reopened + i.Unread
		done++
	})
	if ferr := w.Flush(); ferr != nil {
		return errors.Join(err, ferr)
	}
	if errors.Is(err, recovery.ErrItemLost) {
		err = fmt.Errorf("%w; create it again with the same id, stock and buckets, or discard its orders with --from database --item ID", err)
	}
	if err != nil {
		return fmt.Errorf("sales recovered: %d of %d; repeat the command for the rest. The affected orders so far are listed in %s: %w", done, len(stopped), path, err)
	}
	_, err = fmt.Fprintf(out, "sales recovered: %d; orders concerned: %d, listed in %s\n"+
		"Payments and changes of items since the backup may be lost: compare payments with the payment provider.\n", done, total, path)
	return err
}
