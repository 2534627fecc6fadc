package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/order/store"
	"flashsale/order/store/database"
)

const (
	minPostgres = 15 // the oldest major version that the schema supports
	// processConns is how many connections a process opens at most: those of its store, of its
	// write probe, and of the lock on the database.
	processConns = 17
	// leastProcesses is the smallest deployment: one API and one worker.
	leastProcesses = 2
)

// postgres checks a Postgres database, and returns what it has recorded; nothing if that is unknown.
func (d *doctor) postgres(ctx context.Context) store.Checkup {
	s := d.settings
	db, err := store.Open(ctx, s.DB)
	if err != nil {
		d.fix("database", fmt.Sprintf("%s: %s", config.RedactURL(s.DB), backend.Cause(err)), backend.DatabaseFix(s, err))
		return store.Checkup{}
	}
	defer func() {
		if err := db.Close(); err != nil {
			d.failed("database", err)
		}
	}()
	asked := d.now()
	described, err := db.Describe(ctx)
	if err != nil {
		d.fix("database", backend.Cause(err), backend.DatabaseFix(s, err))
		return store.Checkup{}
	}
	// The server read its clock between the two.
	halfway := asked.Add(d.now().Sub(asked) / 2)
	d.postgresServer(&described)
	d.postgresClock(described.Server.Clock.Sub(halfway))
	if err := backend.CheckSchema(ctx, db); err != nil {
		if cause, fix := backend.SchemaFault(err); cause != "" {
			d.fix("database", cause, fix)
		} else {
			d.fix("database", "its schema cannot be read: "+backend.Cause(err), backend.DatabaseFix(s, err))
		}
		return store.Checkup{}
	}
	c, err := store.Check(ctx, db)
	if err == nil {
		err = d.postgresLocks(ctx, db)
	}
	switch {
	case err != nil:
		d.fix("database", backend.Cause(err), backend.DatabaseFix(s, err))
		return store.Checkup{}
	case len(c.Denied) > 0:
		d.fix("database", "the role may not read and change the rows of "+strings.Join(c.Denied, ", "), "grant the role the permissions that docs/postgres.md lists")
		return store.Checkup{}
	}
	d.ok("database", "%s is reachable and its schema is up to date (epoch %d)", config.RedactURL(s.DB), c.Epoch)
	d.recorded(c.Partitions)
	return c
}

// postgresServer checks the version and the settings of the server.
func (d *doctor) postgresServer(described *database.Description) {
	server := described.Server
	if server.Number < minPostgres*10_000 {
		d.fix("database", "its version is Postgres "+described.Version, fmt.Sprintf("use version %d or later", minPostgres))
	} else {
		d.ok("database", "Postgres %s", described.Version)
	}
	switch {
	case server.Standby:
		d.fix("database", "the server is a standby, and refuses writes", "name the primary, for example with several hosts and target_session_attrs=read-write")
	case server.ReadOnly:
		d.fix("database", "its transactions are read-only by default", "set default_transaction_read_only = off for the role and the database")
	}
	if server.Encoding != "UTF8" {
		d.fix("database", "its encoding is "+server.Encoding, "create it with createdb --encoding=UTF8 --template=template0")
	}
	says, change := backend.PostgresDurability(described)
	if !d.advise("database", says, change) {
		d.ok("database", "%s", says)
	}
	const more = "raise max_connections, or run fewer processes"
	open := fmt.Sprintf("%d of the server's %d connections are open, and a process uses up to %d", server.Used, server.Connections, processConns)
	switch {
	case server.Connections < leastProcesses*processConns:
		d.warn("database", fmt.Sprintf("the server allows %d connections, and an API and a worker use up to %d", server.Connections, leastProcesses*processConns), more)
	case server.Connections-server.Used < processConns:
		d.warn("database", open, more)
	default:
		d.ok("database", "%s", open)
	}
}

// postgresClock judges the difference between the server's clock and this host's.
func (d *doctor) postgresClock(offset time.Duration) {
	if offset.Abs() > backend.MaxClockSkew {
		d.warn("clock", fmt.Sprintf("the Postgres clock minus this machine's is %v: the times of its log and of recovery to a point in time differ from those of the orders",
			offset.Round(time.Millisecond)), backend.ClockFix)
	} else {
		d.ok("clock", "the Postgres clock minus this machine's is %v", offset.Round(time.Millisecond))
	}
}
