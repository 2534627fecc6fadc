package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/spf13/pflag"
)

// settingNames are the names of all settings, sorted.
func settingNames() (names []string) {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	DefineFlags(f)
	f.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// loadWith loads the settings with the given flags.
func loadWith(args ...string) (*Settings, *pflag.FlagSet, error) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	DefineFlags(flags)
	if err := flags.Parse(args); err != nil {
		return nil, nil, err
	}
	s, err := Load(flags)
	return s, flags, err
}

var namedSetting = regexp.MustCompile(`setting ([a-z-]+) \((FLASHSALE_[A-Z_]+)\)`)

// FuzzSettings puts any text into a file, one environment variable and one flag. A refusal must
// be a usage error that names a setting and contains no secret. An accepted value must be
// within its bounds and come from the source with the highest precedence, and the printed
// settings, written to a file, must load to the same values.
func FuzzSettings(f *testing.F) {
	names := settingNames()
	at := func(name string) uint8 { return uint8(slices.Index(names, name)) }
	f.Add([]byte("addr: 127.0.0.1:8003\nbatch: 33\ntrusted-proxies: [10.0.0.0/8, 192.0.2.1]\n"), at("batch"), "22", at("lease"), "3s")
	f.Add([]byte("jwt-secret: short"), at("jwt-secret"), "a secret that must stay hidden 123", at("jwks"), "")
	f.Add([]byte("rate-buyer: .nan\n"), at("partitions"), "0x10", at("partitions"), "0x10")
	f.Add([]byte("data-dir: {a: b}\ndb: [sqlite:x]\n"), at("data-dir"), "", at("demo"), "false")
	f.Add([]byte("data-dir: 2020-01-01\n"), at("data-dir"), "", at("demo"), "false")
	f.Add([]byte("data-dir:\n"), at("data-dir"), "", at("data-dir"), "")
	f.Add([]byte("unknown: 1\n"), at("trusted-proxies"), "10.0.0.0/8,192.0.2.1", at("redis"), "cluster+redis://h:1?addr=h:2")
	f.Add([]byte("- a\n- b\n"), at("webhook-allow"), ",", at("webhook-allow"), "10.0.0.0/8,\"")
	f.Add([]byte("role-map: [admin=shop-admins, buyer=*]\njwks: keys.json\nadmin-audience: a\n"), at("role-map"), "admin=x, buyer=y", at("role-claim"), `a\.b.c`)
	f.Add([]byte("admin-jwt-secret: 1\n"), at("admin-jwt-secret"), "a secret that must stay hidden 1234567", at("admin-issuer"), "x")
	f.Add([]byte("linger: 1\nlease: 1e3\n"), at("drain"), "-1s", at("queue-limit"), "-0")
	for _, beyond := range []string{ // slightly beyond each bound
		"batch=0", "batch=513", "partitions=0", "partitions=1025", "queue-limit=0", "webhook-workers=0", "webhook-workers=1025",
		"lease=999ms", "lease=61m", "linger=-1ms", "linger=1001ms", "drain=0s", "drain=601s", "reconcile-every=999ms",
		"trace-sample=1.01", "trace-sample=-0.01", "trace-sample=NaN", "trace-endpoint=localhost:4318", "trace-endpoint=http://u:p@h", "mock-payments-addr=:8090",
		"rate-buyer=0", "rate-buyer=Inf", "rate-address=-1", "db=sqlite:", "redis=http://h:1", "jwt-secret=1234567890123456789012345678901",
	} {
		name, value, _ := strings.Cut(beyond, "=")
		f.Add([]byte(nil), at(name), value, at("demo"), "false")
		f.Add([]byte(name+": "+value+"\n"), at("addr"), "", at("demo"), "false")
	}
	path := filepath.Join(f.TempDir(), "settings.yaml")
	f.Fuzz(func(t *testing.T, file []byte, variable uint8, value string, flag uint8, given string) {
		if strings.Contains(value, "\x00") {
			return // the environment cannot contain it
		}
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		inEnv, asFlag := names[int(variable)%len(names)], names[int(flag)%len(names)]
		if asFlag == "config" || inEnv == "config" {
			return // the file is the one above
		}
		t.Setenv(EnvName(inEnv), value)
		args := []string{"--config", path, "--" + asFlag + "=" + given}
		s, flags, err := loadWith(args...)
		if err != nil {
			if flags != nil {
				checkRefusal(t, err, names, inEnv, value)
			}
			return
		}
		checkBounds(t, s)
		checkFromFile(t, s, file)
		if s.origins[asFlag] != "flag" {
			t.Fatalf("--%s was given, and its value is from %s", asFlag, s.origins[asFlag])
		}
		if inEnv != asFlag && value != "" && s.origins[inEnv] != "environment "+EnvName(inEnv) {
			t.Fatalf("%s is set, and the value is from %s", EnvName(inEnv), s.origins[inEnv])
		}
		t.Setenv(EnvName(inEnv), "")
		checkWritten(t, s, path)
	})
}

// checkRefusal requires that each line of the error names a setting and that none contains the
// secret.
func checkRefusal(t *testing.T, err error, names []string, inEnv, value string) {
	t.Helper()
	var usage UsageError
	found := namedSetting.FindStringSubmatch(err.Error())
	if !errors.As(err, &usage) || found == nil || !slices.Contains(names, found[1]) || found[2] != EnvName(found[1]) {
		t.Fatalf("refused with %v, which names no setting", err)
	}
	// A shorter one may be part of any word.
	if secretSettings[inEnv] && len(value) > 12 && strings.Contains(err.Error(), value) {
		t.Fatalf("the error contains the secret: %v", err)
	}
}

// checkBounds checks the bounds on which the rest of the program relies.
func checkBounds(t *testing.T, s *Settings) {
	t.Helper()
	for what, ok := range map[string]bool{
		"partitions": s.Partitions >= 1 && s.Partitions <= 1024,
		"batch":      s.Batch >= 1 && s.Batch <= 512,
		"queue":      s.QueueLimit >= 1,
		"workers":    s.WebhookWorkers >= 1 && s.WebhookWorkers <= 1024,
		"rates":      s.RateBuyer != 0 && s.RateAddress >= 0 && s.RateBuyer-s.RateBuyer == 0 && s.RateAddress-s.RateAddress == 0,
		"lease":      s.Lease >= time.Second && s.Lease <= time.Hour,
		"linger":     s.Linger >= 0 && s.Linger <= time.Second,
		"drain":      s.Drain > 0 && s.Drain <= 10*time.Minute,
		"reconcile":  s.ReconcileEvery == 0 || s.ReconcileEvery >= time.Second,
		"key":        s.JWTSecret == "" || s.JWKS == "" && len(s.JWTSecret) >= 32,
		"database":   len(s.DB) > len("sqlite:") && strings.HasPrefix(s.DB, "sqlite:"),
		"redis":      s.Redis == EmbeddedRedis || strings.Contains(s.Redis, "redis"),
		"folder":     s.DataDir != "",
		"payments":   s.MockPaymentsAddr == off || loopback(s.MockPaymentsAddr),
		"traces":     s.TraceSample >= 0 && s.TraceSample <= 1,
	} {
		if !ok {
			t.Fatalf("%s out of bounds: %+v", what, s)
		}
	}
}

// listSettings are the settings that a file may give as a list.
var listSettings = []string{"trusted-proxies", "webhook-allow", "role-map"}

// checkFromFile checks that no table, list or date in the file was read as a text.
func checkFromFile(t *testing.T, s *Settings, file []byte) {
	t.Helper()
	values, err := yaml.Parser().Unmarshal(file)
	if err != nil {
		t.Fatalf("accepted a file that is not YAML: %v", err)
	}
	for name, value := range values {
		if !strings.HasPrefix(s.origins[name], "file ") || slices.Contains(listSettings, name) {
			continue
		}
		switch value.(type) {
		case string, bool, int, int64, uint64, float64, nil:
		default:
			t.Fatalf("%s: %v (%T) is taken for %q", name, value, value, s.values[name])
		}
	}
}

// checkWritten writes the settings as they are printed, and loads them from that file.
func checkWritten(t *testing.T, s *Settings, path string) {
	t.Helper()
	written := make(map[string]any)
	for name, value := range s.values {
		if name != "config" {
			written[name] = value
		}
	}
	text, err := yaml.Parser().Marshal(written)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	again, _, err := loadWith("--config", path)
	if err != nil {
		t.Fatalf("accepted as %+v, and written as\n%s\nrefused: %v", s.values, text, err)
	}
	for name, value := range s.values {
		if again.values[name] != value {
			t.Fatalf("%s was %q, and is %q when it is written and read again", name, value, again.values[name])
		}
	}
	a, b := *s, *again
	a.origins, b.origins, a.values, b.values = nil, nil, nil, nil
	if was, is := fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", b); was != is {
		t.Fatalf("was %s, is %s", was, is)
	}
}
