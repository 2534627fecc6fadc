package postgrestest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"sync"
	"testing"

	"flashsale/internal/testing/await"
)

// empty is the database of every server that new databases are copied from.
const empty = "template0"

// template is a migrated database from which others are copied.
type template struct {
	once sync.Once
	name string
	err  error
}

// NewDatabase returns the URL of an empty database. It is dropped at the end of the test.
func (i *Instance) NewDatabase(t testing.TB) string {
	t.Helper()
	return i.copyOf(t, empty)
}

// Migrated is like the function [Migrated], on this server.
func (i *Instance) Migrated(t testing.TB, migrate func(url string) error) string {
	t.Helper()
	i.template.once.Do(func() {
		// Not bound to this test: others use the result.
		ctx, cancel := context.WithTimeout(context.Background(), await.Limit)
		defer cancel()
		i.template.name = randomName()
		if i.template.err = i.createDatabase(ctx, i.template.name, empty); i.template.err == nil {
			i.template.err = migrate(i.URL(i.template.name))
		}
	})
	if i.template.err != nil {
		t.Fatalf("postgrestest: migrate: %v", i.template.err)
	}
	return i.copyOf(t, i.template.name)
}

// copyOf returns the URL of a copy of a database to which nothing is connected.
func (i *Instance) copyOf(t testing.TB, source string) string {
	t.Helper()
	name := randomName()
	if err := i.createDatabase(await.Context(t), name, source); err != nil {
		t.Fatalf("postgrestest: %v", err)
	}
	t.Cleanup(func() {
		if i.Pid() == 0 {
			return // the test has ended the server
		}
		// The context of the test has ended.
		ctx, cancel := context.WithTimeout(context.Background(), await.Limit)
		defer cancel()
		if err := i.exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("postgrestest: drop database: %v", err)
		}
	})
	return i.URL(name)
}

func (i *Instance) createDatabase(ctx context.Context, name, source string) error {
	if err := i.exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+source); err != nil {
		return fmt.Errorf("create database: %w", err)
	}
	return nil
}

func (i *Instance) exec(ctx context.Context, statement string) error {
	return i.Do(ctx, superuser, func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, statement)
		return err
	})
}

// randomName returns a name that no other database of the server has.
func randomName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return "test_" + hex.EncodeToString(b[:])
}
