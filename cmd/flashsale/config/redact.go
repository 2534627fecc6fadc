package config

import (
	"regexp"
	"strings"

	"flashsale/internal/postgresurl"
)

// secretSettings are never printed.
var secretSettings = map[string]bool{"jwt-secret": true, "admin-jwt-secret": true}

// masked hides secrets, and passwords inside URLs.
func masked(name, value string) string {
	if value == "" {
		return `""`
	}
	if secretSettings[name] {
		return "********"
	}
	return RedactURL(value)
}

// RedactURL hides the password of a URL, even of one that cannot be parsed, and query values
// that may be secrets.
func RedactURL(v string) string {
	if postgresurl.Is(v) {
		return postgresurl.Redact(v)
	}
	v = secretPair.ReplaceAllString(secretQuery.ReplaceAllString(v, "${1}xxxxx"), "${1}xxxxx")
	scheme, rest, ok := strings.Cut(v, "://")
	at := strings.LastIndexByte(rest, '@')
	if !ok || at < 0 {
		return v
	}
	if user, _, secret := strings.Cut(rest[:at], ":"); secret {
		return scheme + "://" + user + ":xxxxx@" + rest[at+1:]
	}
	return scheme + "://xxxxx@" + rest[at+1:]
}

// secretPair finds the password in a list of keywords and values, as libpq takes it, and
// in a URL whose slashes are missing.
var secretPair = regexp.MustCompile(`(?i)(\bpass(?:word)?\s*=\s*|^postgres(?:ql)?:/?[^/:@]*:)(?:'[^']*'|[^\s@&]+)`)

// secretQuery finds the values of parameters such as password, token or sig.
var secretQuery = regexp.MustCompile(`(?i)([?&][^=&]*(?:pass|pwd|secret|token|sig|key|auth)[^=&]*=)[^&#]*`)
