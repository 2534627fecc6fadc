// Package postgresurl checks the connection URLs of Postgres, and hides their secrets.
package postgresurl

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// example is the fix for a URL of the wrong form.
const example = "write postgres://user@host:5432/database"

// escaped is the fix for a URL whose parts are ambiguous.
const escaped = "write each of /?#%@:[] in a user or password as a % code, or set PGPASSWORD or PGPASSFILE instead"

var (
	brokenCode = regexp.MustCompile(`%(?:[^0-9A-Fa-f]|[0-9A-Fa-f][^0-9A-Fa-f]|.?$)`)
	number     = regexp.MustCompile(`^[0-9]*$`)
	secretKey  = regexp.MustCompile(`(?i)pass|pwd|secret|token`)
)

// Is reports whether a database setting names a Postgres database.
func Is(v string) bool {
	return strings.HasPrefix(v, "postgres://") || strings.HasPrefix(v, "postgresql://")
}

// Check returns what is wrong with a URL, and the fix; "" if nothing is. Neither text has
// a secret of the URL. It reads the files that the URL and the environment name, and does not
// connect.
func Check(v string) (wrong, fix string) {
	_, rest, _ := strings.Cut(v, "://")
	authority, _, _ := cutAny(rest, "/?")
	_, query, _ := strings.Cut(rest, "?")
	switch {
	case brokenCode.MatchString(rest):
		return "a % in it is not followed by two hexadecimal digits", escaped
	case strings.Count(rest, "@") > strings.Count(authority, "@"), strings.Count(authority, "@") > 1:
		return "a character in its user or password separates the parts of a URL", escaped
	case !portsAreNumbers(authority):
		return "a port in it is not a number", escaped
	}
	for pair := range strings.SplitSeq(query, "&") {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "pool_") {
			return "its parameter " + name + " has no effect: each process has pools of fixed sizes", "remove it; docs/postgres.md lists the connections of a process"
		}
	}
	c, err := pgx.ParseConfig(v)
	if err != nil {
		return cause(err), example + ", and correct its parameters; docs/postgres.md describes them"
	}
	if c.Database == "" {
		return "it names no database", example
	}
	return "", ""
}

// cause is the part of pgx's error after the URL, which that error quotes in backquotes.
func cause(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "`: "); i >= 0 {
		text = text[i+len("`: "):]
	}
	return text
}

// Redact hides the password of a URL, even of one that is malformed, and query values that may
// be secrets.
func Redact(v string) string {
	scheme, rest, ok := strings.Cut(v, "://")
	if !ok {
		return v
	}
	user := ""
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		name, _, secret := strings.Cut(rest[:at], ":")
		if secret {
			name += ":xxxxx"
		}
		user, rest = name+"@", rest[at+1:]
	}
	authority, end, _ := cutAny(rest, "/?")
	if !portsAreNumbers(authority) { // the password of a URL without a host
		host, _, _ := strings.Cut(authority, ":")
		authority = host + ":xxxxx"
	}
	path, query, found := strings.Cut(end, "?")
	if !found {
		return scheme + "://" + user + authority + path
	}
	pairs := strings.Split(query, "&")
	for i, pair := range pairs {
		name, _, _ := strings.Cut(pair, "=")
		plain, err := url.QueryUnescape(name)
		if err != nil || secretKey.MatchString(plain) && plain != "passfile" {
			pairs[i] = name + "=xxxxx"
		}
	}
	return scheme + "://" + user + authority + path + "?" + strings.Join(pairs, "&")
}

// cutAny cuts v before the first of some characters.
func cutAny(v, chars string) (before, from string, found bool) {
	if i := strings.IndexAny(v, chars); i >= 0 {
		return v[:i], v[i:], true
	}
	return v, "", false
}

// portsAreNumbers checks the hosts of an authority, each with or without a port.
func portsAreNumbers(authority string) bool {
	_, hosts, found := strings.Cut(authority, "@")
	if !found {
		hosts = authority
	}
	for host := range strings.SplitSeq(hosts, ",") {
		_, port, _ := strings.Cut(host[strings.LastIndexByte(host, ']')+1:], ":")
		if !number.MatchString(port) {
			return false
		}
	}
	return true
}
