package store

import (
	"fmt"

	"github.com/jackc/pgx/v5"
)

// WriteLock is the key of the advisory lock that every write transaction on Postgres takes. A
// process that holds it exclusively keeps all others from changing the database.
const WriteLock int64 = writeLock

// The keys of the marks of a copied database in the table meta; see package transfer. No process
// writes into a database on Postgres that has one.
const (
	MarkUnfinished = "copy_unfinished"
	MarkMoved      = "moved_to"
)

// PGX returns the connection of pgx below one of the driver that OpenPostgres uses, for COPY.
func PGX(driver any) (*pgx.Conn, error) {
	c, ok := driver.(*pgConn)
	if !ok {
		return nil, fmt.Errorf("order: unexpected driver connection %T", driver)
	}
	return c.Conn.Conn(), nil
}
