package handler

import (
	"net"
	"strings"
	"time"

	"flashsale/handler/auth"
)

const (
	defaultTokenLife = time.Hour
	maxTokenLife     = 30 * 24 * time.Hour
)

// devToken answers POST /dev/tokens {"sub","role","ttl"?}, which exists in
// development mode alone; ttl is a duration such as "90s" or "1h".
func devToken(sign func(sub, role string, ttl time.Duration) (string, error)) endpoint {
	return func(q *call) error {
		ttl := defaultTokenLife
		b := newFields(q.in)
		sub := b.text("sub", true)
		role := b.text("role", true)
		life := b.text("ttl", false)
		if err := b.done(); err != nil {
			return err
		}
		if !auth.ValidSubject(sub) {
			return problemFieldRange.with("sub", "sub has 1 to 128 characters of A-Z a-z 0-9 . _ : @ -.")
		}
		if !auth.Role(role).Valid() {
			return problemFieldRange.with("role", "role is one of buyer, admin, service.")
		}
		if b.has("ttl") {
			var err error
			if ttl, err = time.ParseDuration(life); err != nil || ttl < time.Second || ttl > maxTokenLife {
				return problemFieldRange.with("ttl", `ttl is a duration from "1s" to "720h".`)
			}
		}
		token, err := sign(sub, role, ttl)
		if err != nil {
			return err
		}
		q.out = append(appendTextField(q.out[:0], `{"token":`, token), '}')
		return q.json(200)
	}
}

// loopbackHost reports whether a Host header names this machine itself.
func loopbackHost(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	ip := net.ParseIP(name)
	return strings.EqualFold(name, "localhost") || ip != nil && ip.IsLoopback()
}
