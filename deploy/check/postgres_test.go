//go:build unix

package check

import (
	"context"
	"database/sql"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/deploytest"
	"flashsale/internal/testing/postgrestest"
	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

// ownerPassword and shopPassword have characters that a script or a URL may mistake.
const (
	ownerPassword = `o'w"n er\$1`
	shopPassword  = `s'h"o p\$2`
)

// passwords makes a server demand passwords of every user but its superuser.
const passwords = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"

// shared writes files to a folder that the user of a Postgres server can read.
func shared(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "compose-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	modes := map[string]os.FileMode{dir: 0o755}
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		modes[path] = 0o644
	}
	for path, mode := range modes {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// source returns the file that the service has under a path.
func source(t *testing.T, s *types.ServiceConfig, target string) string {
	t.Helper()
	for _, v := range s.Volumes {
		if v.Target == target {
			return v.Source
		}
	}
	t.Fatalf("%s has no file %s", s.Name, target)
	return ""
}

// initialised starts a server with the settings of the service postgres, and runs the script of a
// new volume.
func initialised(t *testing.T, s *types.ServiceConfig) *postgrestest.Instance {
	t.Helper()
	conf := ""
	for _, word := range s.Command {
		if path, ok := strings.CutPrefix(word, "config_file="); ok {
			conf = source(t, s, path)
		}
	}
	dir := shared(t, map[string]string{"postgresql.conf": read(t, conf), "hba": passwords, "owner": ownerPassword, "shop": shopPassword})
	server := postgrestest.Start(t, postgrestest.Options{Sync: true, Settings: []string{
		"config_file=" + filepath.Join(dir, "postgresql.conf"), "hba_file=" + filepath.Join(dir, "hba"),
	}})
	script := source(t, s, "/docker-entrypoint-initdb.d/flashsale.sh")
	cmd := exec.CommandContext(t.Context(), "bash", script)
	at, err := url.Parse(server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "SECRETS="+dir, "PGHOST="+at.Hostname(), "PGPORT="+at.Port())
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "ERROR") {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return server
}

// environment returns the variables of a service with the addresses and passwords of the test.
func environment(t *testing.T, s *types.ServiceConfig, postgres string, redis []string, password string) []string {
	t.Helper()
	nodes := "127.0.0.1:0"
	if len(redis) != 0 {
		nodes = redis[0] + "?addr=" + strings.Join(redis[1:], "&addr=")
	}
	var env []string
	for name, value := range composeUnit(s).env {
		switch name {
		case "FLASHSALE_DB":
			value = strings.Replace(value, "@postgres:5432/", "@"+postgres+"/", 1)
		case "FLASHSALE_REDIS":
			value = "cluster+redis://" + nodes
		case "FLASHSALE_JWT_SECRET":
			value = deploytest.Secret
		case "PGPASSWORD":
			value = password
		}
		env = append(env, name+"="+value)
	}
	return env
}

// Given a server with the settings of cluster.yaml and the roles and the database of postgres.sh,
// when its services migrate, api-1 and worker-1 are run with their arguments, then a buyer buys.
// The role of the processes cannot change the schema.
func TestCompose_Postgres(t *testing.T) {
	t.Parallel()
	p, err := load(t, "cluster.yaml", variables())
	if err != nil {
		t.Fatal(err)
	}
	service := func(name string) *types.ServiceConfig {
		s, ok := p.Services[name]
		if !ok {
			t.Fatalf("cluster.yaml has no %s", name)
		}
		return &s
	}
	server := initialised(t, service("postgres"))
	at, err := url.Parse(server.URL("shop"))
	if err != nil {
		t.Fatal(err)
	}
	postgres := net.JoinHostPort(at.Hostname(), at.Port())
	migrate := exec.CommandContext(t.Context(), binary(t), service("migrate").Command...)
	migrate.Env, migrate.Dir = append(os.Environ(), environment(t, service("migrate"), postgres, nil, ownerPassword)...), t.TempDir()
	if out, err := migrate.CombinedOutput(); err != nil {
		t.Fatalf("migrate: %v\n%s", err, out)
	}
	redis := redistest.OwnCluster(t).Addrs()
	start := func(name string) *process.P {
		s := service(name)
		return process.Start(t, process.Spec{
			Binary: binary(t), Command: s.Command[0], Args: withoutAddrs(s.Command[1:]),
			Env: environment(t, s, postgres, redis, shopPassword),
		})
	}
	api, worker := start("api-1"), start("worker-1")
	deploytest.CreateItem(t, api.URL(), "drop-1", "none")
	deploytest.Buy(t, api.URL(), "drop-1", "alice")
	for _, one := range []*process.P{api, worker} {
		if code := one.Stop(); code != 0 {
			t.Errorf("%s ended with %d:\n%s", one.Spec().Command, code, one.Log())
		}
	}
	testRights(t, server)
}

// testRights checks what the role of the service may do.
func testRights(t *testing.T, server *postgrestest.Instance) {
	t.Helper()
	err := server.Do(await.Context(t), "shop", func(db *sql.DB) error {
		refused := func(statement string) {
			err := inRole(t.Context(), db, statement)
			if err == nil || !strings.Contains(err.Error(), "permission denied") && !strings.Contains(err.Error(), "must be owner") {
				t.Errorf("as flashsale, %q: %v", statement, err)
			}
		}
		for _, statement := range []string{"CREATE TABLE t (a int)", "DROP TABLE orders", "ALTER TABLE orders ADD a int", "TRUNCATE orders"} {
			refused(statement)
		}
		var owners []string
		rows, err := db.QueryContext(t.Context(), "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'")
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var owner string
			if err := rows.Scan(&owner); err != nil {
				return err
			}
			owners = append(owners, owner)
		}
		if !slices.Equal(owners, []string{"flashsale_owner"}) {
			t.Errorf("the tables belong to %q", owners)
		}
		return rows.Err()
	})
	if err != nil {
		t.Error(err)
	}
}

// inRole executes a statement as the role of the service, in a transaction that is not committed.
func inRole(ctx context.Context, db *sql.DB, statement string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() //nolint:errcheck // nothing is to be kept
	if _, err := tx.ExecContext(ctx, "SET LOCAL ROLE flashsale"); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, statement)
	return err
}
