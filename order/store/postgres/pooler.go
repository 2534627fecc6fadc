package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// ErrPooled says that a connection pooler gives each transaction another session of the server,
// although the URL has another query mode than simple_protocol. Prepared statements, settings and
// locks of this process would then be in sessions that the pooler gives to others.
var ErrPooled = errors.New("postgres: the database is behind a connection pooler in transaction mode, and default_query_exec_mode is not simple_protocol")

const (
	// poolerClients is how many connections CheckPooler compares, and poolerRounds how often.
	// A pooler without other clients gives all of them the same session at once.
	poolerClients = 3
	poolerRounds  = 5
)

// CheckPooler returns ErrPooled if a connection leads to a pooler whose clients share sessions of
// the server, unless its query mode allows that. It changes nothing in a session.
func CheckPooler(ctx context.Context, conn *pgx.Conn) error {
	cfg := conn.Config()
	if cfg.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol {
		return nil
	}
	session, err := backendPID(ctx, conn)
	// A pooler gives each client a number of its own, with which the client cancels.
	if err != nil || session == conn.PgConn().PID() {
		return err
	}
	clients, sessions := []*pgx.Conn{conn}, []uint32{session}
	defer func() {
		for _, c := range clients[1:] {
			_ = c.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it has no transaction, and the result is known
		}
	}()
	for len(clients) < poolerClients {
		c, err := pgx.ConnectConfig(ctx, cfg)
		if err != nil {
			return err
		}
		clients = append(clients, c)
		if session, err = backendPID(ctx, c); err != nil {
			return err
		}
		if slices.Contains(sessions, session) {
			return ErrPooled
		}
		sessions = append(sessions, session)
	}
	for range poolerRounds {
		for i, c := range clients {
			if session, err = backendPID(ctx, c); err != nil {
				return err
			}
			if session != sessions[i] {
				return ErrPooled
			}
		}
	}
	return nil
}

// backendPID returns the number of the server's process that serves a statement. It uses the simple
// protocol, because nothing may be prepared in a session that the pooler gives to others.
func backendPID(ctx context.Context, c *pgx.Conn) (uint32, error) {
	results, err := c.PgConn().Exec(ctx, "SELECT pg_backend_pid()").ReadAll()
	if err != nil {
		return 0, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return 0, fmt.Errorf("order: pg_backend_pid() returned %d results", len(results))
	}
	pid, err := strconv.ParseUint(string(results[0].Rows[0][0]), 10, 32)
	return uint32(pid), err
}
