package main

import (
	"bytes"
	"strings"
	"testing"

	"flashsale/internal/testing/postgrestest"
)

// withPassword adds a password to the URL of a test's database, whose server asks for none.
func withPassword(url string) string { return strings.Replace(url, "@", ":hunter2@", 1) }

// TestRun_Postgres is the load test as its users run it on Postgres, on a small scale. Its
// verdict is read from the database.
func TestRun_Postgres(t *testing.T) {
	t.Parallel()
	needRedis(t)
	for name, args := range map[string][]string{
		"one process": {"--buyers", "3000", "--stock", "1000", "--connections", "32", "--duplicates", "0.2", "--greedy", "0.1"},
		"split":       {"--split", "--buyers", "2000", "--stock", "1000", "--connections", "32"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			code := run(t.Context(), append(args, "--db", withPassword(postgrestest.NewDatabase(t))), &out, &errs)
			want := "PASS accepted=1000 persisted=1000 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0"
			if code != exitPassed || lastLine(out.String()) != want || !strings.Contains(out.String(), "the database, postgres://") {
				t.Errorf("exit %d\n%s\n%s", code, out.String(), errs.String())
			}
			if strings.Contains(out.String()+errs.String(), "hunter2") {
				t.Error("the password is shown")
			}
		})
	}
}

// A database that does not exist is not created.
func TestRun_PostgresMissing(t *testing.T) {
	t.Parallel()
	db := withPassword(strings.Replace(postgrestest.NewDatabase(t), "?", "_missing?", 1))
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"--db", db, "--buyers", "10"}, &out, &errs)
	if text := errs.String(); code == exitPassed || !strings.Contains(text, "createdb") || strings.Contains(out.String()+text, "hunter2") {
		t.Errorf("exit %d\n%s\n%s", code, out.String(), text)
	}
	f := (&fake{}).serve(t)
	code, text, problem := against(t, f, "--db", db)
	if code != exitUsage || text != "" || !strings.Contains(problem, "3D000") || strings.Contains(problem, "hunter2") {
		t.Errorf("exit %d\n%s\n%s", code, text, problem)
	}
}
