// Package config has the settings, which it reads from flags, the environment and a file, and
// the errors that name the setting to correct.
package config

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

	"flashsale/handler/auth"
	"flashsale/internal/flagvalue"
	"flashsale/internal/plural"
	"flashsale/internal/postgresurl"
	"flashsale/webhook"
)

// envPrefix is the prefix of the environment variables of settings.
const envPrefix = "FLASHSALE_"

// platformVariable matches the variables that Kubernetes and Docker set for services whose names begin with flashsale,
// such as FLASHSALE_PORT=tcp://10.0.0.7:8080.
var platformVariable = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// Settings are the service's settings. The value of each is from its flag, otherwise from its
// environment variable, otherwise from the file, otherwise its default.
type Settings struct {
	Addr            string
	OpsAddr         string
	Redis           string
	DB              string
	DataDir         string
	JWTSecret       string
	JWKS            string
	Identity        Identity
	TokenLeeway     time.Duration
	Partitions      int
	ConfirmReplicas int
	RateBuyer       float64
	RateAddress     float64
	TrustedProxies  []string
	LogLevel        string
	LogFormat       string
	Demo            bool
	QueueLimit      int
	QueueAge        time.Duration
	InFlight        int
	MaxStreams      int
	Lease           time.Duration
	Batch           int
	Linger          time.Duration
	Drain           time.Duration
	ReconcileEvery  time.Duration
	KeepEnded       time.Duration
	WebhookAllow    []string
	WebhookWorkers  int
	// MockPaymentsAddr is only valid in development mode; see MockPayments.
	MockPaymentsAddr string
	LoginURL         string
	TraceEndpoint    string
	TraceSample      float64
	Config           string

	// UnknownVariables are the environment variables that are named like a setting and belong to none, sorted.
	UnknownVariables []string

	path    string            // the file of settings, "" for none
	origins map[string]string // by setting: flag, environment, file or default
	values  map[string]string
}

// maxReplicas bounds confirm-replicas.
const maxReplicas = 100

// EmbeddedRedis is the value of --redis that runs the engine in the process.
const EmbeddedRedis = "embedded"

// DefineFlags declares every setting once, with its name, default and description.
func DefineFlags(f *pflag.FlagSet) {
	f.String("addr", "127.0.0.1:8080", "address the public API listens on")
	f.String("ops-addr", "127.0.0.1:9090", "address of /metrics and /debug/pprof; off: none")
	f.String("redis", EmbeddedRedis, "embedded, redis://host:port/db, rediss://…, cluster+redis://host:port?addr=host:port, or sentinel+redis://host:port?addr=host:port&master_name=NAME")
	f.String("db", "", "sqlite:PATH or postgres://user@host/database (default sqlite:DATA-DIR/flashsale.db)")
	f.String("data-dir", "flashsale-data", "folder for the service's own files")
	f.String("jwt-secret", "", "HS256 key of the tokens, 32 bytes or more (better in the environment than as a flag)")
	f.String("jwks", "", "file or URL of the tokens' public keys, instead of a secret")
	defineIdentity(f)
	f.Duration("token-leeway", 30*time.Second, "allowed clock difference: a token is accepted this long after its exp and before its nbf and iat")
	f.Int("partitions", 1, "number of hash tags for items in Redis; fixed once there is data")
	f.Int("confirm-replicas", 0, "replicas of Redis that must confirm a purchase before its answer; 0: a failover can lose a 202")
	f.Float64("rate-buyer", 20, "requests per second per buyer, in bursts of twice as many; negative: no limit")
	f.Float64("rate-address", 0, "requests per second per client address; 0: no limit")
	f.StringSlice("trusted-proxies", nil, "addresses or networks whose X-Forwarded-For is trusted")
	f.String("log-level", "info", "trace, debug, info, warn, error or disabled")
	f.String("log-format", "console", "json or console")
	f.Bool("demo", true, "serve opens a demo sale on an empty database")
	f.Int("queue-limit", 1_000_000, "orders that may wait for the database, per partition; further purchases get 503")
	f.Duration("queue-age", 5*time.Second, "queue age above which purchases get 202 immediately (503 on the embedded engine)")
	f.Int("in-flight", 50_000, "purchases that a process handles concurrently; further ones get 503")
	f.Int("max-streams", 10_000, "event streams that a process keeps open, at most half of its open-file limit; further ones get 503")
	f.Duration("lease", 5*time.Second, "time without a lease renewal after which a worker's orders go to another worker")
	f.Int("batch", 512, "maximum number of orders that a worker commits in one transaction")
	f.Duration("linger", 20*time.Millisecond, "how long a worker lingers to fill a batch when no client is waiting; 0: not at all")
	f.Duration("drain", 20*time.Second, "how long a stopping process may finish its work: half for requests, half for orders")
	f.Duration("reconcile-every", time.Minute, "interval at which one API process compares Redis and the database and repairs sales that differ twice; 0: never")
	f.Duration("keep-ended", 24*time.Hour, "how long Redis keeps a sale after its end and the last payment window; then the database answers for it")
	f.StringSlice("webhook-allow", nil, "non-public addresses or networks that webhooks may be sent to, also without TLS")
	f.Int("webhook-workers", 32, "concurrent webhook deliveries, at most a quarter of them to one endpoint")
	f.String(mockPayments, "127.0.0.1:0", "loopback address of the mock payment service, which only exists in development mode; port 0: a free one; off: none")
	f.String("login-url", "", "page of the shop where buyers log in, which sets the cookie flashsale_buyer; empty: the shop page asks for a token")
	f.String("trace-endpoint", "", "OTLP/HTTP URL of the collector that traces of purchases are sent to, for example http://localhost:4318; empty: no traces")
	f.Float64("trace-sample", 0.01, "fraction of the purchases that are traced, 0 to 1")
	f.String("config", "", "YAML file with any of these settings, by these names")
}

// UsageError is a usage error; its exit code is 2.
type UsageError struct{ error }

// Unwrap returns the cause.
func (e UsageError) Unwrap() error { return e.error }

// Usage marks err as a usage error.
func Usage(err error) error { return UsageError{err} }

// BadSetting is a usage error that names the setting, its value, the cause and the fix.
func BadSetting(name, value, cause, fix string) error {
	return Usage(FailedSetting(name, value, cause, fix))
}

// FailedSetting is the same for a valid setting that fails at run time, for example because a
// port is taken or a server does not answer. The exit code is then 1.
func FailedSetting(name, value, cause, fix string) error {
	if shown := masked(name, value); value != "" {
		cause = strings.ReplaceAll(cause, value, shown)
		value = shown
	}
	return fmt.Errorf("setting %s (%s): value %q: %s; %s", name, EnvName(name), value, cause, fix)
}

// EnvName is the environment variable of a setting.
func EnvName(setting string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

// Load merges the sources and validates the result.
func Load(flags *pflag.FlagSet) (*Settings, error) {
	s, err := Merge(flags)
	if err != nil {
		return nil, err
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return s, nil
}

// Merge merges the sources without validating the result.
func Merge(flags *pflag.FlagSet) (*Settings, error) {
	if err := needPlaces(flags); err != nil {
		return nil, err
	}
	k := koanf.New(".")
	file, err := readFile(flags)
	if err != nil {
		return nil, err
	}
	if err := k.Load(file, nil); err != nil {
		return nil, fmt.Errorf("read settings: %w", err)
	}
	fromEnv := make(map[string]bool)
	var unknown []string
	environment := env.Provider(".", env.Opt{Prefix: envPrefix, TransformFunc: func(name, value string) (string, any) {
		setting := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, envPrefix)), "_", "-")
		f := flags.Lookup(setting)
		// An empty variable counts as unset.
		if value != "" && !IsSetting(setting) && !platformVariable.MatchString(name) {
			unknown = append(unknown, name)
		}
		if f == nil || setting == "config" || value == "" {
			return "", nil
		}
		fromEnv[setting] = true
		if f.Value.Type() == "stringSlice" {
			return setting, strings.Split(value, ",")
		}
		return setting, value
	}})
	if err := k.Load(environment, nil); err != nil {
		return nil, fmt.Errorf("read settings from the environment: %w", err)
	}
	if err := k.Load(posflag.Provider(flags, ".", k), nil); err != nil {
		return nil, fmt.Errorf("read settings from flags: %w", err)
	}
	slices.Sort(unknown)
	s := &Settings{path: file.path, origins: make(map[string]string), values: make(map[string]string), UnknownVariables: unknown}
	flags.VisitAll(func(f *pflag.Flag) {
		if !IsSetting(f.Name) {
			return
		}
		origin := "default"
		switch {
		case f.Changed:
			origin = "flag"
		case fromEnv[f.Name]:
			origin = "environment " + EnvName(f.Name)
		case f.Name == "config" && file.path != "":
			origin = "environment " + EnvName("config")
		case file.has(f.Name):
			origin = "file " + file.path
		}
		s.origins[f.Name] = origin
	})
	if err := s.fill(k); err != nil {
		return nil, err
	}
	return s, nil
}

// needPlaces refuses an empty value of a flag that names a place, as in --db "$DB" when DB is not set:
// the default would be another shop, or a new one.
func needPlaces(flags *pflag.FlagSet) error {
	for _, name := range []string{"db", "data-dir", "config"} {
		if f := flags.Lookup(name); f != nil && f.Changed && f.Value.String() == "" {
			return BadSetting(name, "", "the flag --"+name+" is empty", "write a value, or omit the flag")
		}
	}
	return nil
}

// IsSetting reports whether a flag is a setting and not a flag of a single command.
func IsSetting(name string) bool { return settingFlag(name) != nil }

// settingFlag returns the definition of a setting, or nil.
func settingFlag(name string) *pflag.Flag {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	DefineFlags(f)
	return f.Lookup(name)
}

// fill sets each field from its merged value.
func (s *Settings) fill(k *koanf.Koanf) error {
	errs := append(s.fillTexts(k), s.fillIdentity(k)...)
	s.Config = s.path
	if s.DB == "" {
		s.DB = "sqlite:" + filepath.Join(s.DataDir, "flashsale.db")
	}
	parse := func(name string, fn func(string) error) {
		if err := fn(k.String(name)); err != nil {
			cause, fix := flagvalue.Explain(settingFlag(name), k.String(name), err)
			errs = append(errs, BadSetting(name, k.String(name), cause, fix))
		}
	}
	integer := func(name string, to *int) {
		parse(name, func(v string) (err error) { *to, err = strconv.Atoi(v); return err })
	}
	number := func(name string, to *float64) {
		parse(name, func(v string) (err error) {
			if *to, err = strconv.ParseFloat(v, 64); err == nil && (math.IsNaN(*to) || math.IsInf(*to, 0)) {
				err = strconv.ErrRange
			}
			return err
		})
	}
	duration := func(name string, to *time.Duration) {
		parse(name, func(v string) (err error) { *to, err = time.ParseDuration(v); return err })
	}
	integer("partitions", &s.Partitions)
	integer("confirm-replicas", &s.ConfirmReplicas)
	integer("queue-limit", &s.QueueLimit)
	integer("in-flight", &s.InFlight)
	integer("max-streams", &s.MaxStreams)
	duration("queue-age", &s.QueueAge)
	integer("batch", &s.Batch)
	integer("webhook-workers", &s.WebhookWorkers)
	number("rate-buyer", &s.RateBuyer)
	number("rate-address", &s.RateAddress)
	number("trace-sample", &s.TraceSample)
	duration("token-leeway", &s.TokenLeeway)
	duration("lease", &s.Lease)
	duration("linger", &s.Linger)
	duration("drain", &s.Drain)
	duration("reconcile-every", &s.ReconcileEvery)
	duration("keep-ended", &s.KeepEnded)
	parse("demo", func(v string) (err error) { s.Demo, err = strconv.ParseBool(v); return err })
	networks := func(name string, to *[]string) {
		v, err := list(k.Get(name))
		if err != nil {
			errs = append(errs, BadSetting(name, fmt.Sprint(k.Get(name)), err.Error(), "write for example [10.0.0.0/8]"))
		}
		*to = v
	}
	networks("trusted-proxies", &s.TrustedProxies)
	networks("webhook-allow", &s.WebhookAllow)
	for name := range s.origins {
		s.values[name] = k.String(name)
	}
	s.values["config"] = s.path
	s.values["db"] = s.DB
	s.values["trusted-proxies"] = strings.Join(s.TrustedProxies, ",")
	s.values["role-map"] = strings.Join(s.Identity.roleMap, ",")
	s.values["webhook-allow"] = strings.Join(s.WebhookAllow, ",")
	return errors.Join(errs...)
}

// textSetting is the destination of a text setting.
type textSetting struct {
	name string
	to   *string
}

// fillTexts sets the text settings.
func (s *Settings) fillTexts(k *koanf.Koanf) (errs []error) {
	for _, t := range append(s.identityTexts(), []textSetting{
		{"addr", &s.Addr}, {"ops-addr", &s.OpsAddr}, {"redis", &s.Redis}, {"db", &s.DB}, {"data-dir", &s.DataDir},
		{"jwt-secret", &s.JWTSecret}, {"jwks", &s.JWKS}, {"log-level", &s.LogLevel}, {"log-format", &s.LogFormat},
		{"trace-endpoint", &s.TraceEndpoint}, {mockPayments, &s.MockPaymentsAddr},
		{"login-url", &s.LoginURL},
	}...) {
		if !single(k.Get(t.name)) {
			errs = append(errs, BadSetting(t.name, k.String(t.name), "it is more than one text", "write one text, in quotes where it looks like something else"))
		}
		*t.to = k.String(t.name)
	}
	if s.OpsAddr == off {
		s.OpsAddr = ""
	}
	return errs
}

// single reports whether a file's value can be converted to its text as written. A list, a
// table or a date, which YAML reads without quotes, cannot.
func single(v any) bool {
	switch v.(type) {
	case string, bool, int, int64, uint64, float64, nil:
		return true
	default:
		return false
	}
}

// list reads a list of texts, or one comma-separated text.
func list(v any) ([]string, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		if v == "" {
			return nil, nil
		}
		return strings.Split(v, ","), nil
	case []string:
		return v, nil
	case []any:
		out := make([]string, len(v))
		for i := range v {
			text, ok := v[i].(string)
			if !ok {
				return nil, fmt.Errorf("its entry %v is not text", v[i])
			}
			out[i] = text
		}
		return out, nil
	default:
		return nil, errors.New("it is not a list")
	}
}

// logLevels are the valid values of --log-level.
var logLevels = []string{"trace", "debug", "info", "warn", "error", "disabled"}

// Validate checks every setting, and combinations that exclude each other.
func (s *Settings) Validate() error {
	var errs []error
	check := func(ok bool, name, cause, fix string) {
		if !ok {
			errs = append(errs, BadSetting(name, s.values[name], cause, fix))
		}
	}
	check(validAddr(s.Addr), "addr", "it is not host:port", "write for example 127.0.0.1:8080")
	check(s.OpsAddr == "" || validAddr(s.OpsAddr), "ops-addr", "it is not host:port", "write for example 127.0.0.1:9090, or off")
	check(validRedis(s.Redis), "redis", "unknown engine", "write embedded, redis://host:port/0, rediss://host:port/0, cluster+redis://host:port or sentinel+redis://host:port?master_name=NAME")
	unknown, remedy := s.validDB()
	check(unknown == "", "db", unknown, remedy)
	check(s.DataDir != "", "data-dir", "it is empty", "name a folder, for example flashsale-data")
	check(s.JWTSecret == "" || len(s.JWTSecret) >= auth.MinSecret, "jwt-secret", "it has "+plural.Count(len(s.JWTSecret), "byte"), "use 32 or more, for example from openssl rand -hex 32")
	check(s.JWTSecret == "" || s.JWKS == "", "jwks", "there is a jwt-secret too", "set one of the two")
	s.validateIdentity(check)
	check(s.TokenLeeway >= 0 && s.TokenLeeway <= auth.MaxLeeway, "token-leeway", "it is out of range", "use 0 to 5m")
	check(s.Partitions >= 1 && s.Partitions <= 1024, "partitions", "it is out of range", "use 1 to 1024")
	confirm := s.ConfirmReplicas >= 0 && s.ConfirmReplicas <= maxReplicas
	check(confirm, "confirm-replicas", "it is out of range", "use 0 to 100")
	check(!confirm || s.ConfirmReplicas == 0 || s.Redis != EmbeddedRedis, "confirm-replicas", "the embedded engine has no replicas", "set redis to a server, or confirm-replicas to 0")
	check(s.RateAddress >= 0, "rate-address", "it is negative", "use 0 for no limit, or more")
	check(s.RateBuyer != 0, "rate-buyer", "it would refuse everyone", "use more than 0, or -1 for no limit")
	check(s.QueueLimit >= 1, "queue-limit", "it is out of range", "use 1 or more")
	check(s.QueueAge >= 100*time.Millisecond && s.QueueAge <= time.Hour, "queue-age", "it is out of range", "use 100ms to 1h")
	check(s.InFlight >= 1, "in-flight", "it is out of range", "use 1 or more")
	check(s.MaxStreams >= 1 && s.MaxStreams <= 1_000_000, "max-streams", "it is out of range", "use 1 to 1000000")
	check(s.Batch >= 1 && s.Batch <= 512, "batch", "it is out of range", "use 1 to 512")
	check(s.Lease >= time.Second && s.Lease <= time.Hour, "lease", "it is out of range", "use 1s to 1h")
	check(s.Linger >= 0 && s.Linger <= time.Second, "linger", "it is out of range", "use 0 to 1s")
	check(s.Drain > 0 && s.Drain <= 10*time.Minute, "drain", "it is out of range", "use more than 0, at most 10m")
	check(s.ReconcileEvery == 0 || s.ReconcileEvery >= time.Second && s.ReconcileEvery <= 24*time.Hour, "reconcile-every", "it is out of range", "use 1s to 24h, or 0 for never")
	check(s.KeepEnded >= time.Minute && s.KeepEnded <= 365*24*time.Hour, "keep-ended", "it is out of range", "use 1m to 8760h")
	check(slices.Contains(logLevels, s.LogLevel), "log-level", "unknown level", "use trace, debug, info, warn, error or disabled")
	check(s.LogFormat == "json" || s.LogFormat == "console", "log-format", "unknown format", "use json or console")
	for _, p := range s.TrustedProxies {
		check(validProxy(p), "trusted-proxies", fmt.Sprintf("%q is neither an address nor a network", p), "write for example 10.0.0.0/8")
	}
	network := validNetworks(s.WebhookAllow)
	check(network == "", "webhook-allow", network, "write for example 10.0.0.0/8")
	check(s.WebhookWorkers >= 1 && s.WebhookWorkers <= 1024, "webhook-workers", "it is out of range", "use 1 to 1024")
	check(s.MockPaymentsAddr == off || validAddr(s.MockPaymentsAddr) && loopback(s.MockPaymentsAddr), mockPayments,
		"it is not a loopback address", "write for example 127.0.0.1:8090, or off")
	check(s.LoginURL == "" || validLogin(s.LoginURL), "login-url", "it is neither a URL nor a path",
		"write for example https://shop.example/login or /account/login")
	wrong, fix := validEndpoint(s.TraceEndpoint)
	check(wrong == "", "trace-endpoint", wrong, fix)
	check(s.TraceSample >= 0 && s.TraceSample <= 1, "trace-sample", "it is out of range", "use 0 to 1, for example 0.01 for one purchase in a hundred")
	return errors.Join(errs...)
}

// validLogin reports whether v is an absolute URL of HTTP or a path of the same host.
func validLogin(v string) bool {
	u, err := url.Parse(v)
	if err != nil || u.User != nil || u.Fragment != "" {
		return false
	}
	if u.Scheme == "" {
		return u.Host == "" && strings.HasPrefix(v, "/")
	}
	return (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

func validAddr(v string) bool {
	_, port, err := net.SplitHostPort(v)
	if err != nil {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n <= 65535
}

// Postgres reports whether the database is Postgres.
func (s *Settings) Postgres() bool { return postgresurl.Is(s.DB) }

// validDB returns what is wrong with the setting of the database, and the fix.
func (s *Settings) validDB() (wrong, fix string) {
	if s.Postgres() {
		return postgresurl.Check(s.DB)
	}
	path, ok := strings.CutPrefix(s.DB, "sqlite:")
	switch {
	case !ok || path == "":
		return "unknown kind of database", "write sqlite:PATH or postgres://user@host:5432/database"
	case path == ":memory:":
		return "each connection would have its own database, and a restart would lose it", "name a file: sqlite:PATH"
	case strings.HasPrefix(path, "//") && !strings.HasPrefix(path, "///"):
		// SQLite would read a host name.
		return "a path does not begin with two slashes", "write sqlite:PATH, such as sqlite:shop.db or sqlite:/var/lib/flashsale/shop.db"
	}
	return "", ""
}

func validRedis(v string) bool {
	if v == EmbeddedRedis {
		return true
	}
	u, err := url.Parse(v)
	return err == nil && u.Host != "" && slices.Contains([]string{"redis", "rediss", "cluster+redis", "cluster+rediss", "sentinel+redis", "sentinel+rediss"}, u.Scheme)
}

// validEndpoint returns what is wrong with the URL of a collector, and the fix.
func validEndpoint(v string) (wrong, fix string) {
	const example = "write for example http://localhost:4318"
	u, err := url.Parse(v)
	switch {
	case v == "":
		return "", ""
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "it is not an http or https URL", example
	case u.User != nil:
		return "it has a password, which would not be sent", "set OTEL_EXPORTER_OTLP_HEADERS, for example to authorization=Basic%20..."
	case u.RawQuery != "" || u.Fragment != "":
		return "it has a query or a fragment, which would not be sent", example
	}
	return "", ""
}

func validProxy(v string) bool {
	if _, err := netip.ParseAddr(v); err == nil {
		return true
	}
	_, err := netip.ParsePrefix(v)
	return err == nil
}

// settingsFile is a YAML file of settings as a koanf provider.
type settingsFile struct {
	path   string
	values map[string]any
}

func (f *settingsFile) has(name string) bool { _, ok := f.values[name]; return ok }

// Read returns the values.
func (f *settingsFile) Read() (map[string]any, error) { return maps.Clone(f.values), nil }

// ReadBytes is not supported: the file is already parsed.
func (f *settingsFile) ReadBytes() ([]byte, error) {
	return nil, errors.New("settings file: read as values only")
}

func readFile(flags *pflag.FlagSet) (*settingsFile, error) {
	path, err := flags.GetString("config")
	if err != nil {
		return nil, err
	}
	if path == "" {
		path = os.Getenv(EnvName("config"))
	}
	f := &settingsFile{path: path, values: map[string]any{}}
	if path == "" {
		return f, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, BadSetting("config", path, "the file cannot be read ("+err.Error()+")", "name a YAML file, or leave it out")
	}
	if f.values, err = yaml.Parser().Unmarshal(text); err != nil {
		return nil, BadSetting("config", path, "it is not YAML ("+err.Error()+")", "write lines such as addr: 127.0.0.1:8080")
	}
	for name := range f.values {
		if !IsSetting(name) {
			return nil, BadSetting("config", path, fmt.Sprintf("it holds an unknown setting %q", name), "see the names in --help")
		}
	}
	return f, nil
}

// WebhookPolicy returns which addresses webhooks may be sent to.
func (s *Settings) WebhookPolicy() (webhook.Policy, error) {
	allow, err := webhook.ParseNetworks(s.WebhookAllow)
	return webhook.Policy{Allow: allow}, err
}

// validNetworks returns what is wrong with a list of networks, or "".
func validNetworks(texts []string) (cause string) {
	if _, err := webhook.ParseNetworks(texts); err != nil {
		return fmt.Sprintf("one of %q is neither an address nor a network", texts)
	}
	return ""
}

// Print writes every setting with its value and the source of the value. Secrets are masked.
func (s *Settings) Print(out io.Writer) error {
	names := make([]string, 0, len(s.origins))
	for name := range s.origins {
		names = append(names, name)
	}
	slices.Sort(names)
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	for _, name := range names {
		fmt.Fprintf(w, "%s\t%s\t%s\n", name, masked(name, s.values[name]), s.origins[name])
	}
	return w.Flush()
}
