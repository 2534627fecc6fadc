//go:build unix

package main_test

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"flashsale/handler/auth"
	"flashsale/internal/testing/process"
)

// commands are all commands of the program.
var commands = [][]string{
	{}, {"serve"}, {"api"}, {"worker"}, {"migrate"}, {"migrate", "up"}, {"migrate", "down"}, {"migrate", "status"},
	{"item"}, {"item", "create"}, {"item", "list"}, {"item", "change"}, {"item", "restock"}, {"item", "pause"},
	{"item", "resume"}, {"item", "close"}, {"order"}, {"order", "refund"}, {"payment"}, {"payment", "list"}, {"payment", "refunded"}, {"queue"}, {"queue", "stats"}, {"queue", "dead"}, {"queue", "retry"},
	{"queue", "discard"}, {"queue", "verify"}, {"reconcile"}, {"top"}, {"token"}, {"config"}, {"doctor"}, {"completion"},
	{"backup"}, {"restore"}, {"recover"}, {"item", "warm"}, {"migrate", "copy"},
}

// decodeOutput decodes what a command has printed as one line of JSON.
func decodeOutput(t *testing.T, r process.Result, to any) {
	t.Helper()
	if r.Code != 0 || strings.Count(r.Output, "\n") != 1 {
		t.Fatalf("exit code %d, want one line of JSON:\n%s", r.Code, r.Output)
	}
	if err := json.Unmarshal([]byte(r.Output), to); err != nil {
		t.Fatalf("%v:\n%s", err, r.Output)
	}
}

// command runs a command in an empty folder.
func command(t *testing.T, args ...string) process.Result {
	t.Helper()
	return process.Run(t, process.Spec{Args: args})
}

// wantCode fails the test unless the command exited with the code and printed all the words.
func wantCode(t *testing.T, code int, r process.Result, words ...string) {
	t.Helper()
	if r.Code != code {
		t.Errorf("exit code %d, want %d:\n%s", r.Code, code, r.Output)
		return
	}
	for _, w := range words {
		if !strings.Contains(r.Output, w) {
			t.Errorf("the output lacks %q:\n%s", w, r.Output)
		}
	}
}

func TestCommand_Help(t *testing.T) {
	needProcesses(t)
	for _, c := range commands {
		name := strings.Join(append([]string{"flashsale"}, c...), " ")
		r := command(t, append(c, "--help")...)
		wantCode(t, 0, r, "Usage:", name)
		if len(c) > 0 {
			parent := command(t, append(c[:len(c)-1:len(c)-1], "--help")...)
			wantCode(t, 0, parent, "  "+c[len(c)-1]+" ")
		}
	}
	r := command(t, "--help")
	for _, f := range []string{"--addr", "--ops-addr", "--redis", "--db", "--data-dir", "--jwt-secret", "--jwks", "--partitions",
		"--rate-buyer", "--rate-address", "--trusted-proxies", "--log-level", "--log-format", "--config"} {
		wantCode(t, 0, r, f)
	}
}

// The help of a command shows its own flags, and of the settings only those that it reads.
func TestCommand_HelpShowsWhatIsRead(t *testing.T) {
	needProcesses(t)
	shown := map[string][]string{
		"migrate": {"db", "data-dir", "config"}, "migrate copy": {"data-dir", "config"}, "backup": {"db", "data-dir", "config"}, "restore": {"db", "data-dir", "config"},
		"recover": {"db", "redis", "data-dir", "partitions", "config"}, "doctor": {"db", "redis", "data-dir", "config"},
		"token": {"jwt-secret", "data-dir", "config"}, "completion": {},
	}
	for _, group := range []string{"item", "order", "payment", "queue", "reconcile", "top"} {
		shown[group] = []string{"addr", "jwt-secret", "data-dir", "config"}
	}
	all := settingFlags(command(t, "serve", "--help").Output)
	if len(all) < 40 {
		t.Fatalf("serve --help shows the settings %v", all)
	}
	for _, c := range commands {
		if len(c) == 0 || slices.Contains([]string{"serve", "api", "worker", "config"}, c[0]) {
			continue
		}
		want, ok := shown[strings.Join(c, " ")]
		if !ok {
			want = shown[c[0]]
		}
		help := command(t, append(c, "--help")...)
		wantCode(t, 0, help, "All settings of the service: flashsale serve --help")
		var got []string
		for _, name := range settingFlags(help.Output) {
			if slices.Contains(all, name) {
				got = append(got, name)
			}
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%v --help shows the settings %v, want %v", c, got, want)
		}
	}
	wantCode(t, 0, command(t, "item", "create", "--help"), "--price-minor", "--server")
	wantCode(t, 0, command(t, "help", "item", "create"), "--price-minor", "All settings of the service")
	if r := command(t, "__complete", "payment", "list", "--"); !strings.Contains(r.Output, "--needs-refund") || strings.Contains(r.Output, "--lease") {
		t.Errorf("the completion of payment list:\n%s", r.Output)
	}
}

// settingFlags are the names of the flags in a help text but --help, sorted.
func settingFlags(help string) (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z-]+)`).FindAllStringSubmatch(help, -1) {
		if m[1] != "help" && m[1] != "version" {
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	return names
}

// Every command accepts every setting, and reports those that it does not read.
func TestCommand_UnreadSettings(t *testing.T) {
	needProcesses(t)
	const note = "has no effect on"
	key := []string{"FLASHSALE_JWT_SECRET=" + secret}
	r := process.Run(t, process.Spec{Env: key, Args: []string{"--lease", "3s", "token", "--sub", "alice", "--db", "sqlite:x", "--issuer", "me", "--data-dir", "d"}})
	wantCode(t, 0, r, "flashsale: --lease has no effect on flashsale token\n", "flashsale: --db has no effect on flashsale token\n")
	if strings.Count(r.Output, note) != 2 {
		t.Errorf("there are other notes:\n%s", r.Output)
	}
	wantCode(t, 1, process.Run(t, process.Spec{Env: key, Args: []string{"item", "list", "--addr", process.FreeAddr(t), "--redis", "redis://h:1"}}),
		"--redis has no effect on flashsale item list", "does not answer")
	for _, args := range [][]string{{"config", "--lease", "3s"}, {"doctor", "--lease", "3s"}, {"migrate", "up", "--db", "sqlite:x.db"}} {
		if r := process.Run(t, process.Spec{Args: args, Env: append(key, "FLASHSALE_BATCH=7")}); r.Code != 0 || strings.Contains(r.Output, note) {
			t.Errorf("%v: exit code %d\n%s", args, r.Code, r.Output)
		}
	}
}

func TestCommand_Completion(t *testing.T) {
	needProcesses(t)
	for shell, word := range map[string]string{"bash": "complete", "zsh": "#compdef flashsale", "fish": "complete -c flashsale", "powershell": "Register-ArgumentCompleter"} {
		wantCode(t, 0, command(t, "completion", shell), word)
	}
	// The shell scripts run this.
	wantCode(t, 0, command(t, "__complete", "mig"), "migrate")
	wantCode(t, 0, command(t, "__complete", "migrate", ""), "up", "down", "status")
	wantCode(t, 0, command(t, "__complete", "serve", "--ops"), "--ops-addr")
}

func TestCommand_WrongUsage(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	for _, q := range []struct {
		args []string
		word string
	}{
		{[]string{"sell"}, "sell"}, {[]string{"--nonsense"}, "nonsense"}, {[]string{"serve", "now"}, "now"}, {[]string{"api", "--nonsense"}, "nonsense"},
		{[]string{"migrate"}, "migrate"}, {[]string{"migrate", "sideways"}, "sideways"}, {[]string{"migrate", "up", "2"}, `"2"`},
		{[]string{"item", "list", "--server", "ftp://127.0.0.1"}, "server"},
		{[]string{"item", "create", "--payment-window", "none", "--id", "a", "--name", "A", "--stock", "1"}, "--price-minor"},
		{[]string{"item", "create", "--payment-window", "none", "--id", "a", "--name", "A", "--price-minor", "1"}, "--stock"},
		{[]string{"item", "create", "--payment-window", "none", "--name", "A", "--stock", "1", "--price-minor", "1"}, "--id"},
		{[]string{"item"}, "item"}, {[]string{"item", "sell"}, "sell"}, {[]string{"item", "create", "--stock", "many"}, "stock"},
		{[]string{"item", "restock", "--quantity", "1", "--reason", "r"}, "item id"}, {[]string{"item", "restock", "a", "--quantity", "1"}, "reason"},
		{[]string{"item", "restock", "a", "--reason", "r"}, "quantity"}, {[]string{"item", "restock", "a", "--quantity", "1.5", "--reason", "r"}, "quantity"},
		{[]string{"item", "pause"}, "item id"}, {[]string{"item", "close", "a", "b"}, "item id"}, {[]string{"item", "change", "a"}, "at least one field"},
		{[]string{"item", "list", "--server", "nonsense"}, "server"}, {[]string{"item", "list", "--wait", "-1s"}, "wait"}, {[]string{"queue", "stats", "--wait", "2h"}, "wait"}, {[]string{"config", "--addr"}, "addr"},
		{[]string{"reconcile", "--deep", "false"}, "--name=false"}, {[]string{"order", "refund", "x", "--restock", "true"}, "--restock=true"},
		{[]string{"token"}, "token needs --sub"}, {[]string{"token", "--sub", ""}, "sub"}, {[]string{"token", "--sub", "al ice"}, "sub"}, {[]string{"token", "--sub", "alice", "--role", "king"}, "role"},
		{[]string{"token", "--sub", "alice", "--ttl", "-1h"}, "ttl"}, {[]string{"token", "--sub", "alice", "--ttl", "1ms"}, "ttl"},
		{[]string{"token", "--sub", "alice", "--jwks", "keys.json"}, "jwks"},
		{[]string{"payment", "refunded", "-1"}, `argument "-1": it is read as a flag`}, {[]string{"item", "restock", "a", "-10"}, "--name=-10"},
		{[]string{"queue", "retry", "-5x"}, `argument "-5x"`}, {[]string{"order", "refund", "-.5"}, `argument "-.5"`}, {[]string{"top", "-x"}, "unknown shorthand"},
		{[]string{"backup", ""}, "empty"}, {[]string{"restore", ""}, "empty"},
		{[]string{"item", "restock", "a", "--quantity", "1", "--reason", "r", "--key", ""}, "--key"},
		{[]string{"item", "create", "--payment-window", "none", "--id", "a", "--name", "A", "--stock", "1", "--price-minor", "1", "--closes-at", ""}, "--closes-at"},
		{[]string{"queue", "discard", "--all", "--yes", "--before", ""}, "--before"}, {[]string{"queue", "retry", "--all", "--group", ""}, "--group"},
		{[]string{"queue", "discard", "--all", "--yes", "--server", ""}, "--server"}, {[]string{"item", "list", "--token", ""}, "--token"},
		{[]string{"queue", "dead", "--group", ""}, "--group"}, {[]string{"payment", "list", "--outcome", ""}, "--outcome"},
		{[]string{"recover", "--from", "database", "--redis", "redis://127.0.0.1:1", "--item", ""}, "--item"},
		{[]string{"help", "nonsense"}, "nonsense"}, {[]string{"help", "item", "nonsense"}, "nonsense"},
		{[]string{"completion"}, "completion"}, {[]string{"completion", "nonsense"}, "nonsense"},
		{[]string{"backup"}, "FILE"}, {[]string{"backup", "a", "b"}, "FILE"}, {[]string{"restore"}, "FILE"}, {[]string{"restore", "a", "b"}, "FILE"},
		{[]string{"backup", "a", "--db", "postgres://shop@127.0.0.1/shop"}, "pg_dump"},
		{[]string{"restore", "a", "--db", "postgresql://shop@127.0.0.1/shop"}, "pg_restore"},
	} {
		r := command(t, q.args...)
		wantCode(t, 2, r, q.word)
		if strings.Contains(r.Output, "goroutine") || strings.Contains(r.Output, "flashsale: flashsale") {
			t.Errorf("%v panicked, or names the program twice:\n%s", q.args, r.Output)
		}
	}
}

// The help of a command is the same by both ways.
func TestCommand_HelpFlag(t *testing.T) {
	s := newShop(t)
	by, flag := s.run("help", "item", "create"), s.run("item", "create", "--help")
	wantCode(t, 0, by, "--price-minor")
	if by.Output != flag.Output {
		t.Errorf("help item create prints\n%s\nand item create --help\n%s", by.Output, flag.Output)
	}
}

// TestCommand_Migrate migrates up, down and up again, and checks the status.
func TestCommand_Migrate(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	s := newShop(t)
	wantCode(t, 1, s.run("migrate", "status"), "does not exist", s.dbPath, "flashsale migrate up")
	if err := os.WriteFile(s.dbPath, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantCode(t, 1, s.run("migrate", "status"), "pending", "older than this program", "flashsale migrate up")
	wantCode(t, 0, s.run("migrate", "up"), "applied ")
	status := s.run("migrate", "status")
	wantCode(t, 0, status, "applied")
	steps := strings.Count(status.Output, "applied")
	var list struct{ Migrations []struct{ Applied bool } }
	if decodeOutput(t, s.run("migrate", "status", "--json"), &list); len(list.Migrations) != steps || !list.Migrations[0].Applied {
		t.Errorf("the migrations as JSON: %+v", list)
	}
	wantCode(t, 0, s.run("migrate", "up"), "nothing to apply")
	wantCode(t, 2, s.run("migrate", "down"), "drops the tables and columns", "--yes")
	wantCode(t, 0, s.run("migrate", "status"), "applied")
	for range steps {
		wantCode(t, 0, s.run("migrate", "down", "--yes"), "undone 1")
		wantCode(t, 1, s.run("migrate", "status"), "pending")
	}
	wantCode(t, 0, s.run("migrate", "down", "--yes"), "nothing to undo")
	wantCode(t, 0, s.run("migrate", "up"), fmt.Sprintf("applied %d", steps))
	p := s.serve()
	c := dial(t, p)
	s.audit(c, s.newItem(c, 1, 1), 1, nil)
	wantCode(t, 1, s.run("migrate", "down", "--yes"), "another process serves this database", "stop every flashsale")
	wantCode(t, 0, s.run("migrate", "status"), "applied")
	if a := c.admin("POST", "/v1/admin/items", map[string]any{
		"id": "divided", "name": "Thing", "price_minor": 1, "currency": "EUR", "stock": 2, "buckets": 2,
	}); a.Status != 201 {
		t.Fatalf("create a divided item: %d %s", a.Status, a.Body)
	}
	p.Stop()
	wantCode(t, 1, s.run("migrate", "down", "--yes"), "divided into buckets", "keep this version")
}

// A database of a newer version or of another application is refused by every command that opens
// it, and its file stays as it is.
func TestCommand_UnusableDatabase(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	closed := process.FreeAddr(t)
	for name, q := range map[string]struct {
		shop      bool
		statement string
		words     []string
	}{
		"Newer":   {true, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (1000000, 1)", []string{"newer than this program", "migrate down"}},
		"Foreign": {false, "CREATE TABLE posts (id INTEGER)", []string{"another application", "correct the setting"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "shop.db")
			settings := func(args ...string) process.Spec {
				return process.Spec{Args: append(args, "--db", "sqlite:"+path, "--data-dir", t.TempDir()), Env: []string{"FLASHSALE_JWT_SECRET=" + secret}}
			}
			if q.shop {
				wantCode(t, 0, process.Run(t, settings("migrate", "up")))
			}
			db, err := sql.Open("sqlite3", "file:"+path)
			if err == nil {
				_, err = db.ExecContext(t.Context(), q.statement)
				err = errors.Join(err, db.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			commands := [][]string{
				{"migrate", "up"},
				{"migrate", "down", "--yes"},
				{"migrate", "status"},
				{"serve", "--demo=false", "--addr", "127.0.0.1:0", "--ops-addr", "off"},
				{"api", "--redis", "redis://" + closed + "/0"},
				{"worker", "--redis", "redis://" + closed + "/0"},
				{"doctor"},
			}
			if !q.shop {
				other := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
				wantCode(t, 0, process.Run(t, process.Spec{Args: []string{"migrate", "up", "--db", other, "--data-dir", t.TempDir()}}))
				commands = append(commands,
					[]string{"migrate", "copy", "--from", "sqlite:" + path, "--to", other},
					[]string{"migrate", "copy", "--from", other, "--to", "sqlite:" + path})
			}
			for _, args := range commands {
				wantCode(t, 1, process.Run(t, settings(args...)), q.words...)
				if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
					t.Errorf("%v changed the file, %v", args, err)
				}
			}
		})
	}
}

// Commands that only read, and processes that need a database, do not create files if there is
// none.
func TestCommand_CreatesNothing(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	key := []string{"FLASHSALE_JWT_SECRET=" + secret}
	closed := process.FreeAddr(t)
	redis := "redis://" + closed + "/0"
	for _, q := range []struct {
		args []string
		env  []string
		code int
		word string
	}{
		{[]string{"migrate", "status"}, key, 1, "does not exist"},
		{[]string{"migrate", "down", "--yes"}, key, 1, "does not exist"},
		{[]string{"migrate", "down"}, key, 2, "--yes"},
		{[]string{"api", "--redis", redis}, key, 1, "does not exist"},
		{[]string{"worker", "--redis", redis}, key, 1, "does not exist"},
		{[]string{"doctor"}, nil, 0, "embedded"},
		{[]string{"config"}, nil, 0, "data-dir"},
		{[]string{"item", "list", "--addr", closed}, nil, 1, closed},
		{[]string{"item", "pause", "drop-1", "--addr", closed}, nil, 1, "FLASHSALE_JWT_SECRET"},
		{[]string{"queue", "stats", "--addr", closed}, nil, 1, "FLASHSALE_JWT_SECRET"},
		{[]string{"payment", "list", "--addr", closed}, nil, 1, "FLASHSALE_JWT_SECRET"},
		{[]string{"order", "refund", "x", "--restock=true", "--addr", closed}, nil, 1, "FLASHSALE_JWT_SECRET"},
		{[]string{"queue", "dead", "--addr", closed}, nil, 1, "FLASHSALE_JWT_SECRET"},
		{[]string{"reconcile", "--addr", closed}, nil, 1, "FLASHSALE_JWT_SECRET"},
		{[]string{"token", "--sub", "alice"}, nil, 1, "FLASHSALE_JWT_SECRET"},
		{[]string{"backup", "copy.db"}, nil, 1, "does not exist"},
		{[]string{"restore", "none.db"}, nil, 1, "none.db"},
	} {
		dir := t.TempDir()
		data := filepath.Join(dir, "data")
		for _, where := range [][]string{{"--data-dir", data}, {"--data-dir", data, "--db", "sqlite:" + filepath.Join(dir, "deep", "shop.db")}} {
			r := process.Run(t, process.Spec{Args: append(q.args, where...), Env: q.env})
			wantCode(t, q.code, r, q.word)
			if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
				t.Errorf("%v left %v, %v", q.args, left, err)
			}
		}
	}
}

func TestCommand_Item(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	p := s.serve()
	c := dial(t, p)
	addr := strings.TrimPrefix(p.URL(), "http://")
	create := func(id string, more ...string) process.Result {
		return s.run(append([]string{"item", "create", "--id", id, "--name", "Drop 1", "--price-minor", "4900", "--stock", "7", "--limit", "2", "--payment-window", "none"}, more...)...)
	}
	wantCode(t, 0, create("drop-1", "--addr", addr), "drop-1", "open", "7", "4900 EUR")
	unstated := s.run("item", "create", "--id", "drop-3", "--name", "Drop 3", "--price-minor", "1", "--stock", "7", "--server", p.URL())
	wantCode(t, 2, unstated, "--payment-window", "15m", "none")
	wantCode(t, 0, create("drop-9", "--server", p.URL(), "--payment-window", "90s", "--image", "/images/a.jpg"), "drop-9", "4900 EUR       /images/a.jpg  Drop 1")
	for id, want := range map[string][]string{
		"drop-1": {`"payment_window_seconds":0,`, `"description":"","price_minor"`},
		"drop-9": {`"payment_window_seconds":90,`, `"image_url":"/images/a.jpg",`},
	} {
		for _, part := range want {
			if a := c.admin("GET", "/v1/admin/items/"+id, nil); a.Status != 200 || !strings.Contains(a.Body, part) {
				t.Errorf("%s: %s, want %s", id, a.Body, part)
			}
		}
	}
	token := c.token("root", auth.RoleAdmin)
	wantCode(t, 0, create("drop-2", "--server", p.URL(), "--token", token, "--currency", "JPY", "--opens-at", "2100-01-01T00:00:00Z"), "drop-2", "scheduled", "JPY")
	wantCode(t, 0, s.run("item", "list", "--server", p.URL()), "drop-1", "drop-2", "Drop 1")
	if a := c.buyMany("drop-1", "alice", "k", 2, untilCommitted...); a.verdict() != "201" {
		t.Errorf("buy what was created: %s", a.verdict())
	}
	if a := c.buy("drop-2", "alice", "k"); a.verdict() != "409 sale_not_open" || !waits(a.answer) {
		t.Errorf("buy before the opening: %s", a.verdict())
	}
	for _, q := range []struct {
		r     process.Result
		code  int
		words []string
	}{
		{create("drop-1", "--server", p.URL()), 1, []string{"item_exists"}},
		{create("DROP", "--server", p.URL()), 2, []string{"id_invalid"}},
		{create("drop-3", "--server", p.URL(), "--currency", "XXY"), 2, []string{"field_range", "currency"}},
		{create("drop-3", "--server", p.URL(), "--closes-at", "2000-01-01T00:00:00Z"), 2, []string{"window_invalid"}},
		{create("drop-3", "--server", p.URL(), "--token", c.token("alice", auth.RoleBuyer)), 1, []string{"forbidden"}},
		{create("drop-3", "--server", p.URL(), "--token", "nonsense"), 1, []string{"token_malformed"}},
		{create("drop-3", "--server", "http://"+process.FreeAddr(t)), 1, []string{"refused"}},
	} {
		wantCode(t, q.code, q.r, q.words...)
	}
	if r := s.run("item", "list", "--server", p.URL()); strings.Contains(r.Output, "drop-3") {
		t.Errorf("a refused item is there:\n%s", r.Output)
	}
}

// TestCommand_ItemList lists more items than one page has, each once.
func TestCommand_ItemList(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	p := s.serve(noLimit...)
	c := dial(t, p)
	const n = 201
	id := func(i int) string { return fmt.Sprintf("drop-%03d", i) }
	stream(n, 8, func(i int) struct{} {
		if a := c.admin("POST", "/v1/admin/items", map[string]any{
			"id": id(i), "name": "Thing", "price_minor": 990, "currency": "EUR", "stock": 10,
		}); a.Status != 201 {
			t.Errorf("create: %d %s", a.Status, a.Body)
		}
		return struct{}{}
	})
	r := s.run("item", "list", "--server", p.URL())
	wantCode(t, 0, r)
	var list struct{ Items []struct{ ID string } }
	decodeOutput(t, s.run("item", "list", "--server", p.URL(), "--json"), &list)
	if len(list.Items) != n {
		t.Errorf("%d items as JSON, want %d", len(list.Items), n)
	}
	for i := range n {
		if got := strings.Count(r.Output, id(i)); got != 1 {
			t.Errorf("%s is listed %d times", id(i), got)
		}
	}
}

// TestCommand_Token signs tokens with the configured key and with the key of development mode,
// and the service accepts them.
func TestCommand_Token(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	c := dial(t, s.serve())
	for role, want := range map[string]int{"buyer": 403, "admin": 404, "service": 403} {
		r := s.run("token", "--sub", "somebody", "--role", role, "--ttl", "90s")
		wantCode(t, 0, r)
		a, err := c.do("GET", "/v1/admin/items/none/ledger", strings.TrimSpace(r.Output), "")
		if err != nil || a.Status != want {
			t.Errorf("a token of role %s on an admin's route: %s, error %v", role, a.verdict(), err)
		}
	}
	foreign := process.Run(t, process.Spec{Args: []string{"token", "--sub", "alice", "--role", "admin"}, Env: []string{"FLASHSALE_JWT_SECRET=" + strings.Repeat("x", 32)}})
	wantCode(t, 0, foreign)
	if a, err := c.do("GET", "/v1/orders", strings.TrimSpace(foreign.Output), ""); err != nil || a.verdict() != "401 token_signature" {
		t.Errorf("a token of another key: %s, error %v", a.verdict(), err)
	}
}

// TestDevelopment_StartsWithoutSettings starts the service without any setting, as a new user
// does.
func TestDevelopment_StartsWithoutSettings(t *testing.T) {
	needProcesses(t)
	dir := t.TempDir()
	p := process.Start(t, process.Spec{Dir: dir})
	c := dial(t, p)
	key := filepath.Join(dir, "flashsale-data", "jwt.key")
	info, err := os.Stat(key)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the development key has mode %o", info.Mode().Perm())
	}
	json := []string{"Content-Type", "application/json"}
	a, err := c.do("POST", "/dev/tokens", "", `{"sub":"alice","role":"buyer"}`, json...)
	if err != nil || a.Status != 200 {
		t.Fatalf("POST /dev/tokens: %s, error %v", a.verdict(), err)
	}
	var made struct{ Token string }
	a.decode(t, &made)
	if a, err = c.do("POST", "/v1/items/demo/orders", made.Token, `{"quantity":1}`, append(json, "Idempotency-Key", "k")...); err != nil || a.Status != 201 {
		t.Errorf("buy from the demo sale: %s, error %v", a.verdict(), err)
	}
	for body, want := range map[string]string{
		`{"sub":"alice"}`: "400 field_missing", `{"sub":"alice","role":"king"}`: "422 field_range", `{"sub":"a b","role":"buyer"}`: "422 field_range", "": "400 body_missing",
	} {
		if a, err := c.do("POST", "/dev/tokens", "", body, json...); err != nil || a.verdict() != want {
			t.Errorf("POST /dev/tokens %s: %s, error %v; want %s", body, a.verdict(), err, want)
		}
	}
	// The printed admin token is valid, and so is one of the command.
	_, printed, _ := strings.Cut(p.Log(), "admin ")
	printed, _, _ = strings.Cut(strings.TrimSpace(printed), "\n")
	r := process.Run(t, process.Spec{Args: []string{"token", "--sub", "root", "--role", "admin"}, Dir: dir})
	wantCode(t, 0, r)
	for _, token := range []string{printed, strings.TrimSpace(r.Output)} {
		if a, err := c.do("GET", "/v1/admin/items/demo/ledger", token, ""); err != nil || a.Status != 200 {
			t.Errorf("the ledger with token %q: %s, error %v", token, a.verdict(), err)
		}
	}
	for _, word := range []string{p.URL(), p.OpsURL(), "development", "embedded"} {
		if !strings.Contains(p.Log(), word) {
			t.Errorf("the start does not print %q:\n%s", word, p.Log())
		}
	}
	term(t, p)
	// Tokens stay valid after a restart, and the demo sale is created once.
	p = process.Start(t, p.Spec())
	c = dial(t, p)
	if a, err := c.do("GET", "/v1/orders", made.Token, ""); err != nil || !strings.Contains(a.Body, `"demo"`) {
		t.Errorf("the order after a restart: %s %s, error %v", a.verdict(), a.Body, err)
	}
}

// TestAddresses_ServeOnlyTheirRoutes checks which routes exist only for operators or only in
// development mode.
func TestAddresses_ServeOnlyTheirRoutes(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	api, worker := s.api(), s.worker()
	c := dial(t, api)
	paths := []string{"/metrics", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=1"}
	for _, path := range paths {
		if a, err := c.do("GET", path, c.token("root", auth.RoleAdmin), ""); err != nil || a.Status != 404 {
			t.Errorf("%s on the public address: %s, error %v", path, a.verdict(), err)
		}
		for _, p := range []*process.P{api, worker} {
			if a, err := dialAddr(t, p.OpsURL()).do("GET", path, "", ""); err != nil || a.Status != 200 {
				t.Errorf("%s on the operators' address of %s: %s, error %v", path, p.Spec().Command, a.verdict(), err)
			}
		}
	}
	if a, err := c.do("POST", "/dev/tokens", "", `{"sub":"alice","role":"admin"}`, "Content-Type", "application/json"); err != nil || a.Status != 404 {
		t.Errorf("POST /dev/tokens with a key configured: %s, error %v", a.verdict(), err)
	}
	if a, err := dialAddr(t, api.OpsURL()).do("GET", "/v1/items", "", ""); err == nil && a.Status == 200 {
		t.Error("the operators' address serves the shop")
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if a := c.get(path, "u"); a.Status != 200 {
			t.Errorf("%s: %s", path, a.verdict())
		}
	}
	item := s.newItem(c, 3, 1)
	if p := c.buy(item, "alice", "k", untilCommitted...); p.verdict() != "201" {
		t.Errorf("buy: %s", p.verdict())
	}
	// Creating the item takes its lock once; the purchase takes it again or still holds it.
	metrics, err := dialAddr(t, api.OpsURL()).do("GET", "/metrics", "", "")
	for _, line := range []string{"flashsale_lock_wait_duration_seconds_count ", `flashsale_lock_events_total{event="lost"} 0`} {
		if err != nil || !strings.Contains(metrics.Body, line) || strings.Contains(metrics.Body, "flashsale_lock_wait_duration_seconds_count 0\n") {
			t.Errorf("the API's metrics of its locks lack %q: error %v\n%s", line, err, grep(metrics.Body, "flashsale_lock"))
		}
	}
	metrics, err = dialAddr(t, worker.OpsURL()).do("GET", "/metrics", "", "")
	if err != nil || !strings.Contains(metrics.Body, "flashsale_orders_committed_total 1") {
		t.Errorf("the worker's metrics do not count the order: error %v\n%s", err, grep(metrics.Body, "flashsale_"))
	}
}

// grep returns the lines that contain word.
func grep(text, word string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			out.WriteString(line)
		}
	}
	return out.String()
}

// The start warns if other machines can reach the metrics and the profiles.
func TestOpsAddr_WarnsIfReachable(t *testing.T) {
	needProcesses(t)
	const warning = "/metrics and /debug/pprof are served without authentication on "
	for host, public := range map[string]bool{"127.0.0.1": false, "localhost": false, "0.0.0.0": true, "": true, "[::]": true} {
		s := newShop(t)
		_, port, err := net.SplitHostPort(process.FreeAddr(t))
		if err != nil {
			t.Fatal(err)
		}
		spec := s.spec("serve", []string{"--demo=false"})
		spec.OpsAddr = host + ":" + port
		log := process.Start(t, spec).Log()
		if strings.Contains(log, warning) != public || public && !strings.Contains(log, "--ops-addr") || strings.Count(log, warning) > 1 {
			t.Errorf("--ops-addr %s:\n%s", spec.OpsAddr, log)
		}
	}
}
