package postgresurl

import (
	"path/filepath"
	"strings"
	"testing"
)

// A valid URL may have several hosts, no user, or a socket instead of a host.
func TestCheck_Valid(t *testing.T) {
	t.Parallel()
	for _, v := range []string{
		"postgres://shop@db.example/shop", "postgresql://shop:pa%40ss%2F@db.example:5433/shop?sslmode=verify-full",
		"postgres:///shop?host=/var/run/postgresql", "postgres://shop@[::1]:5432/shop",
		"postgres://shop@a:1,b:2/shop?target_session_attrs=read-write",
		"postgres://shop@h/shop?default_query_exec_mode=simple_protocol&application_name=shop&connect_timeout=5",
	} {
		if wrong, fix := Check(v); wrong != "" {
			t.Errorf("%s: %s; %s", v, wrong, fix)
		}
	}
}

func TestCheck_Invalid(t *testing.T) {
	t.Setenv("PGDATABASE", "")
	const secret = "hunter2"
	for v, want := range map[string]string{
		"postgres://":                                     "no database",
		"postgres://shop@db.example":                      "no database",
		"postgres://shop@db.example/":                     "no database",
		"postgres://shop:" + secret + "/x@h/shop":         "separates",
		"postgres://shop:" + secret + "?x@h/shop":         "separates",
		"postgres://shop:x@" + secret + "@h/shop":         "separates",
		"postgres://shop:" + secret + "%zz@h/shop":        "hexadecimal",
		"postgres://shop:" + secret + "%@h/shop":          "hexadecimal",
		"postgres://shop:" + secret + "%4@h/shop":         "hexadecimal",
		"postgres://shop:" + secret:                       "port",
		"postgres://shop@h:http/shop":                     "port",
		"postgres://shop:" + secret + "@h:99999/shop":     "port",
		"postgres://shop@h/shop?sslmode=maybe":            "sslmode",
		"postgres://shop@h/shop?default_query_exec_mode=": "default_query_exec_mode",
		"postgres://shop@h/shop?target_session_attrs=x":   "target_session_attrs",
		"postgres://shop@h/shop?connect_timeout=soon":     "connect_timeout",
		"postgres://shop@h/shop?pool_max_conns=9":         "pool_max_conns",
		"postgres://shop:" + secret + "@h/shop?sslmode=verify-full&sslrootcert=" + filepath.Join(t.TempDir(), "none.pem"): "none.pem",
	} {
		wrong, fix := Check(v)
		if !strings.Contains(wrong, want) || fix == "" {
			t.Errorf("%s: %q; %q, want %q", v, wrong, fix, want)
		}
		if text := wrong + fix + Redact(v); strings.Contains(text, secret) {
			t.Errorf("%s: the password is shown: %s", v, text)
		}
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		"postgres://shop@db.example/shop":               "postgres://shop@db.example/shop",
		"postgres://shop:p@db.example/shop":             "postgres://shop:xxxxx@db.example/shop",
		"postgresql://shop:p/q?r#s@h:1/shop":            "postgresql://shop:xxxxx@h:1/shop",
		"postgres://shop:p@q@h/shop":                    "postgres://shop:xxxxx@h/shop",
		"postgres://h/shop?password=p#q&sslmode=prefer": "postgres://h/shop?password=xxxxx&sslmode=prefer",
		"postgres://h/shop?pass%77ord=p":                "postgres://h/shop?pass%77ord=xxxxx",
		"postgres://h/shop?a%zz=p":                      "postgres://h/shop?a%zz=xxxxx",
		"postgres://h/shop?sslpassword=p&passfile=/f":   "postgres://h/shop?sslpassword=xxxxx&passfile=/f",
		"postgres://shop:p":                             "postgres://shop:xxxxx",
		"postgres://a:1,b:2/shop":                       "postgres://a:1,b:2/shop",
		"postgres://[::1]:5432/shop":                    "postgres://[::1]:5432/shop",
		"sqlite:shop.db":                                "sqlite:shop.db",
	} {
		if got := Redact(from); got != want {
			t.Errorf("%s is printed as %s, want %s", from, got, want)
		}
	}
}
