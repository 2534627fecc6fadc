//go:build unix

package doctor

import (
	"strings"
	"testing"
	"time"

	"flashsale/cmd/flashsale/config"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgrestest"
	"flashsale/order/store/database"
)

// foundAt joins the findings of one level.
func (d *doctor) foundAt(level string) string {
	var all []string
	for _, f := range d.found {
		if f.level == level {
			all = append(all, f.part+": "+f.says)
		}
	}
	return strings.Join(all, "\n")
}

func TestDoctor_PostgresServer(t *testing.T) {
	t.Parallel()
	good := database.Server{Number: 150004, Encoding: "UTF8", Connections: 97, Used: 20}
	with := func(change func(*database.Server)) *database.Server {
		s := good
		change(&s)
		return &s
	}
	for _, q := range []struct {
		server *database.Server
		level  string
		want   string
	}{
		{&good, levelOK, "20 of the server's 97 connections"},
		{with(func(s *database.Server) { s.Number = 140019 }), levelFix, "version"},
		{with(func(s *database.Server) { s.Standby = true }), levelFix, "standby"},
		{with(func(s *database.Server) { s.ReadOnly = true }), levelFix, "read-only"},
		{with(func(s *database.Server) { s.Encoding = "LATIN1" }), levelFix, "LATIN1"},
		{with(func(s *database.Server) { s.Connections = 31 }), levelWarn, "allows 31 connections"},
		{with(func(s *database.Server) { s.Used = 82 }), levelWarn, "82 of the server's 97"},
	} {
		d := &doctor{settings: &config.Settings{}}
		d.postgresServer(&database.Description{Engine: "postgres", Version: "15.4", Server: q.server})
		if !strings.Contains(d.foundAt(q.level), q.want) {
			t.Errorf("%s %q is not among %+v", q.level, q.want, d.found)
		}
		if problems := len(d.found) - strings.Count(d.foundAt(levelOK), "\n") - 1; (problems == 0) != (q.level == levelOK) {
			t.Errorf("%q: %d problems: %+v", q.want, problems, d.found)
		}
	}
}

// TestDoctor_PostgresDurability: what Postgres keeps is one finding. There is no additional "ok".
func TestDoctor_PostgresDurability(t *testing.T) {
	t.Parallel()
	for setting, level := range map[string]string{"fsync": levelFix, "synchronous_commit": levelWarn} {
		d := &doctor{settings: &config.Settings{}}
		d.postgresServer(&database.Description{
			Engine: "postgres", Version: "15.4", Server: &database.Server{Number: 150004, Encoding: "UTF8", Connections: 97},
			Settings: []database.Setting{{Name: setting, Value: "off"}},
		})
		if !strings.Contains(d.foundAt(level), "("+setting+" off)") || strings.Contains(d.foundAt(levelOK), setting) {
			t.Errorf("%s off: the doctor found %+v, want one finding at %s", setting, d.found, level)
		}
	}
}

// A difference between this machine's clock and that of Postgres is worth a warning, in either
// direction.
func TestDoctor_PostgresClock(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it starts a Postgres server, and -short asks for the quick tests")
	}
	t.Parallel()
	db := postgrestest.NewDatabase(t)
	for skew, want := range map[time.Duration]string{5 * time.Minute: levelWarn, -5 * time.Minute: levelWarn, 0: levelOK} {
		d := &doctor{settings: &config.Settings{DB: db}, now: func() time.Time { return time.Now().Add(skew) }}
		if partitions := d.postgres(await.Context(t)).Partitions; partitions != 0 {
			t.Errorf("an empty database has %d partitions", partitions)
		}
		if !strings.Contains(d.foundAt(want), "clock: the Postgres clock") {
			t.Errorf("skew %v: %+v", skew, d.found)
		}
		if !strings.Contains(d.foundAt(levelFix), "it is empty") {
			t.Errorf("an empty database: %+v", d.found)
		}
	}
}
