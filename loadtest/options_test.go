package main

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func TestParse_Defaults(t *testing.T) {
	t.Parallel()
	o := options4test(t)
	if o.Buyers != 20_000 || o.Stock != 1_000 || o.Limit != 1 || o.Quantity != 1 || o.Profile != profileBurst || o.Connections != 256 || o.Timeout != time.Minute {
		t.Errorf("defaults: %+v", o)
	}
}

func TestRun_WrongUsage(t *testing.T) {
	t.Parallel()
	tests := []struct {
		args []string
		want []string // the option, the value, the fix
	}{
		{[]string{"--buyers", "0"}, []string{"--buyers", `"0"`, "1 to"}},
		{[]string{"--buyers", "many"}, []string{"--buyers", `"many"`, "not a whole number", "example 20000"}},
		{[]string{"--profile", "steady", "--rate", "fast"}, []string{"--rate", `"fast"`, "not a number", "example 2000"}},
		{[]string{"--seed", "-1"}, []string{"--seed", `"-1"`, "0 or more"}},
		{[]string{"--async=maybe"}, []string{"--async", `"maybe"`, "true or false"}},
		{[]string{"--stock", "-1"}, []string{"--stock", `"-1"`, "1 to"}},
		{[]string{"--report", "/nonexistent/report.html"}, []string{"--report", "/nonexistent/report.html", "folder"}},
		{[]string{"--limit", "0"}, []string{"--limit", `"0"`, "1 to"}},
		{[]string{"--quantity", "2"}, []string{"--quantity", `"2"`, "--limit"}},
		{[]string{"--profile", "spike"}, []string{"--profile", `"spike"`, "ramp"}},
		{[]string{"--rate", "100"}, []string{"--rate", `"100"`, "--profile steady"}},
		{[]string{"--profile", "steady", "--rate", "0"}, []string{"--rate", `"0"`, "requests per second"}},
		{[]string{"--profile", "steady", "--rate", "NaN"}, []string{"--rate", `"NaN"`, "requests per second"}},
		{[]string{"--duplicates", "1.5"}, []string{"--duplicates", `"1.5"`, "fraction"}},
		{[]string{"--duplicates", "NaN"}, []string{"--duplicates", `"NaN"`, "fraction"}},
		{[]string{"--greedy", "-0.1"}, []string{"--greedy", `"-0.1"`, "fraction"}},
		{[]string{"--connections", "0"}, []string{"--connections", `"0"`, "1 to"}},
		{[]string{"--timeout", "0s"}, []string{"--timeout", `"0s"`, "100ms"}},
		{[]string{"--timeout", "5"}, []string{"--timeout", `"5"`, "no unit", "example 1m"}},
		{[]string{"--seed"}, []string{"--seed", "needs a value"}},
		{[]string{"--bogus"}, []string{"--bogus", "--help"}},
		{[]string{"burst"}, []string{`"burst"`, "--help"}},
		{[]string{"--db", "mysql://h/d"}, []string{"--db", `"mysql://h/d"`, "sqlite:PATH"}},
		{[]string{"--db", "postgres://shop:hunter2@h"}, []string{"--db", `"postgres://shop:xxxxx@h"`, "no database"}},
		{[]string{"--db", "postgres://shop:hunter2/x@h/shop"}, []string{"--db", `"postgres://shop:xxxxx@h/shop"`, "% code"}},
		{[]string{"--db", "sqlite:"}, []string{"--db", "path is missing"}},
		{[]string{"--target", "localhost"}, []string{"--target", `"localhost"`, "http://"}},
		{[]string{"--target", "http://h", "--redis", "embedded"}, []string{"--redis", `"embedded"`, "--target"}},
		{[]string{"--target", "http://h", "--jwt-secret", "short"}, []string{"--jwt-secret", "32 bytes"}},
		{[]string{"--admin-token", "t"}, []string{"--admin-token", "--target"}},
		{[]string{"--split", "--target", "http://h"}, []string{"--target", `"http://h"`, "--split"}},
		{[]string{"--split", "--redis", "embedded"}, []string{"--redis", `"embedded"`, "--split"}},
		{[]string{"--split", "--admin-token", "t"}, []string{"--admin-token", "--target"}},
		{[]string{"--profile", "flash", "--rate", "100"}, []string{"--rate", `"100"`, "--profile steady"}},
		{[]string{"--lobby", "1s"}, []string{"--lobby", `"1s"`, "--profile flash"}},
		{[]string{"--profile", "flash", "--lobby", "1ms"}, []string{"--lobby", `"1ms"`, "100ms"}},
		{[]string{"--profile", "flash", "--readers", "-1"}, []string{"--readers", `"-1"`, "0 to"}},
		{[]string{"--profile", "flash", "--readers", "100000", "--lobby", "1h"}, []string{"--readers", "more than 1000000 reads"}},
		{[]string{"--profile", "flash", "--read-every", "1ms"}, []string{"--read-every", `"1ms"`, "10ms"}},
		{[]string{"--profile", "flash", "--stragglers", "NaN"}, []string{"--stragglers", `"NaN"`, "fraction"}},
		{[]string{"--profile", "flash", "--tail", "-1s"}, []string{"--tail", `"-1s"`, "0s to"}},
		{[]string{"--kill", "worker@50%"}, []string{"--kill", `"worker@50%"`, "--split"}},
		{[]string{"--split", "--kill", "redis@50%"}, []string{"--kill", `"redis@50%"`, "worker1"}},
		{[]string{"--split", "--kill", "worker@50%,worker1@60%"}, []string{"--kill", "killed twice"}},
		{[]string{"--split", "--kill", "worker@50%", "--down", "1h"}, []string{"--down", `"1h0m0s"`, "--timeout"}},
		{[]string{"--down", "1s"}, []string{"--down", `"1s"`, "--kill"}},
		{[]string{"--split", "--quantity", "0"}, []string{"--quantity", `"0"`, "1 to"}},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			if code := run(t.Context(), tt.args, &out, &errs); code != exitUsage || out.Len() > 0 {
				t.Errorf("exit %d, want %d; output %q", code, exitUsage, out.String())
			}
			for _, want := range tt.want {
				if !strings.Contains(errs.String(), want) {
					t.Errorf("%q lacks %q", errs.String(), want)
				}
			}
		})
	}
}

func TestParse_ConnectionsOfSplit(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]int{
		"--split":                                    250,
		"--split --stock 100":                        25,
		"--split --buyers 80 --stock 1000":           20,
		"--split --stock 1":                          4,
		"--split --stock 100 --connections 200":      200,
		"--split --stock 100 --limit 5 --quantity 5": 5,
	} {
		if o := options4test(t, strings.Fields(args)...); o.Connections != want {
			t.Errorf("%s: %d connections, want %d", args, o.Connections, want)
		}
	}
}

func TestRun_MissingDatabase(t *testing.T) {
	t.Parallel()
	f := (&fake{}).serve(t)
	code, out, errs := against(t, f, "--db", "sqlite:"+t.TempDir()+"/none.db")
	if code != exitUsage || out != "" || !strings.Contains(errs, "none.db") || !strings.Contains(errs, "--db") {
		t.Errorf("exit %d\n%s\n%s", code, out, errs)
	}
}

func TestParse_SecretsAreNotRepeated(t *testing.T) {
	t.Parallel()
	_, err := parse([]string{"--target", "http://h", "--jwt-secret", "hush"}, io.Discard)
	var usage *usageError
	if !errors.As(err, &usage) || strings.Contains(err.Error(), "hush") {
		t.Errorf("got %v", err)
	}
}

func TestRun_Help(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &out, &errs); code != exitPassed || errs.Len() > 0 {
		t.Errorf("exit %d, %s", code, errs.String())
	}
	for _, option := range strings.Fields("--buyers --stock --limit --rate --profile --duplicates --quantity --connections --async --seed --json --report --redis --db --target --admin-token --timeout --split --lobby --readers --read-every --stragglers --tail --kill --down") {
		if !strings.Contains(out.String(), option) {
			t.Errorf("help lacks %s", option)
		}
	}
}
