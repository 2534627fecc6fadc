package handler

import (
	"time"

	"flashsale/handler/auth"
	"flashsale/handler/encode"
	"flashsale/handler/request"
)

const (
	defaultTokenLife = time.Hour
	maxTokenLife     = 30 * 24 * time.Hour
)

// devToken answers POST /dev/tokens {"sub","role","ttl"?}, which only exists in development
// mode; ttl is a duration such as "90s" or "1h".
func devToken(sign func(sub, role string, ttl time.Duration) (string, error)) endpoint {
	return func(q *call) error {
		ttl := defaultTokenLife
		b := request.ReadFields(q.in)
		sub := b.Text("sub", true)
		role := b.Text("role", true)
		life := b.Text("ttl", false)
		if err := b.Done(); err != nil {
			return err
		}
		if !auth.ValidSubject(sub) {
			return request.ErrFieldRange.With("sub", "sub has 1 to 128 characters of A-Z a-z 0-9 . _ : @ -.")
		}
		if !auth.Role(role).Valid() {
			return request.ErrFieldRange.With("role", "role is one of buyer, admin, service.")
		}
		if b.Has("ttl") {
			var err error
			if ttl, err = time.ParseDuration(life); err != nil || ttl < time.Second || ttl > maxTokenLife {
				return request.ErrFieldRange.With("ttl", `ttl is a duration from "1s" to "720h".`)
			}
		}
		token, err := sign(sub, role, ttl)
		if err != nil {
			return err
		}
		q.out = append(encode.TextField(q.out[:0], `{"token":`, token), '}')
		return q.json(200)
	}
}
