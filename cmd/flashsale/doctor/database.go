package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/internal/bucket"
	"flashsale/order/store"
	"flashsale/order/store/sqlite"
)

// migrate is the fix for a database without the present schema.
const migrate = "run flashsale migrate up, or flashsale serve, which does it"

// database checks the database, and returns what it has recorded; nothing if that is unknown.
func (d *doctor) database(ctx context.Context) store.Checkup {
	s := d.settings
	if s.Postgres() {
		return d.postgres(ctx)
	}
	path := strings.TrimPrefix(s.DB, "sqlite:")
	if err := sqlite.CheckLog(path); err != nil {
		d.fix("database", err.Error(), sqlite.StrayLogFix)
		return store.Checkup{}
	}
	// Opening it would create it.
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if s.Redis == config.EmbeddedRedis { // serve creates it
			d.warn("database", "there is no database at "+path, migrate)
		} else {
			d.fix("database", "there is no database at "+path+", so no api or worker starts", migrate+"; or correct the path")
		}
		return store.Checkup{}
	}
	if cause, fix := backend.SchemaFault(backend.RefuseForeign(ctx, s)); cause != "" {
		d.fix("database", cause, fix)
		return store.Checkup{}
	}
	c, locked := d.sqlite(ctx, path)
	if locked {
		// Only now, because the search would end the locks that this process holds on the file.
		d.lockHeld(path, lockHolder(path))
	}
	return c
}

// sqlite checks a SQLite file, and returns what it has recorded; nothing if that is unknown. locked:
// its write lock could not be taken in time.
func (d *doctor) sqlite(ctx context.Context, path string) (c store.Checkup, locked bool) {
	s := d.settings
	db, err := store.Open(ctx, s.DB)
	if err != nil {
		d.fix("database", err.Error(), backend.DatabaseFix(s, err))
		return store.Checkup{}, false
	}
	defer func() {
		if err := db.Close(); err != nil {
			d.failed("database", err)
		}
	}()
	if free, _, known := backend.DiskSpace(filepath.Dir(path)); known {
		d.space(free)
	}
	if err := backend.CheckSchema(ctx, db); err != nil {
		if cause, fix := backend.SchemaFault(err); cause != "" {
			d.fix("database", cause, fix)
		} else {
			d.fix("database", "its schema cannot be read: "+err.Error(), "make sure that the file is a database of this service and is not locked")
		}
		return store.Checkup{}, false
	}
	if c, err = store.Check(ctx, db); err == nil {
		locked, err = d.writeLocked(ctx, db)
	}
	switch {
	case err != nil:
		d.fix("database", err.Error(), "make sure that the file can be read and is not locked")
		return store.Checkup{}, false
	case len(c.Damage) > 0:
		d.fix("database", "the file is damaged: "+strings.Join(c.Damage, "; "), "stop every process, and restore the last copy")
	case c.JournalMode != "wal":
		d.warn("database", "its journal mode is "+c.JournalMode+", not wal", "use a file system with shared memory; network file systems have none")
	default:
		d.ok("database", "%s is intact and its schema is up to date (epoch %d)", path, c.Epoch)
	}
	d.recorded(c.Partitions)
	return c, locked
}

// space reports a disk of the database with few free bytes.
func (d *doctor) space(free uint64) {
	report := d.warn
	switch {
	case free >= minDisk:
		return
	case free < fullDisk:
		report = d.fix
	}
	report("database", fmt.Sprintf("%d MiB are free beside it", free>>20), "free disk space: a full disk stops commits and purchases")
}

// recorded compares the number of partitions that the database has recorded with the setting.
func (d *doctor) recorded(partitions int) {
	if partitions != 0 && partitions != d.settings.Partitions {
		d.fix("partitions", fmt.Sprintf("the setting is %d, but the database was created with %d", d.settings.Partitions, partitions),
			fmt.Sprintf("set --partitions %d", partitions))
	}
}

// age compares the database with the revisions that Redis has recorded.
func (d *doctor) age(ctx context.Context, rdb redis.UniversalClient, partitions int) {
	if backend.NeedDatabase(d.settings) != nil || backend.RefuseForeign(ctx, d.settings) != nil {
		return // reported before
	}
	db, err := store.Open(ctx, d.settings.DB)
	if err != nil {
		return // reported before
	}
	defer func() {
		if err := db.Close(); err != nil {
			d.failed("database", err)
		}
	}()
	if backend.CheckSchema(ctx, db) != nil {
		return // reported before
	}
	behind, err := store.FindBehind(ctx, db, rdb, partitions)
	if err != nil {
		d.failed("database", err)
		return
	}
	d.behind(behind)
}

// behind reports the items that are stopped because the database is older than Redis.
func (d *doctor) behind(items []store.Behind) {
	var lost []string
	var old []store.Behind
	for _, b := range items {
		if !b.Lost {
			old = append(old, b)
		} else if item := bucket.Item(b.ItemID); !slices.Contains(lost, item) {
			lost = append(lost, item)
		}
	}
	if len(lost) > 0 {
		d.fix("database", fmt.Sprintf("it is older than Redis, for example after a backup was restored: Redis has orders of items that it does not have (%d): %s",
			len(lost), strings.Join(lost[:min(len(lost), maxListed)], ", ")),
			"create them again with the same id, stock and buckets, and then decide with flashsale recover; see docs/backup.md")
	}
	if len(old) > 0 {
		b := &old[0]
		d.fix("database", fmt.Sprintf("it is older than Redis, for example after a backup was restored: sales are stopped (%d), the first is %s (revision %d in the database, %d in Redis)",
			len(old), b.ItemID, b.Database, b.Redis), "decide with flashsale recover --from redis or --from database; see docs/backup.md")
	}
	if len(items) == 0 {
		d.ok("database", "it is not older than Redis")
	}
}
