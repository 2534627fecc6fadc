package handler

import (
	"net/http"
	"strings"

	"flashsale/handler/auth"
)

// authenticate returns who sends the request. Tokens are taken from the
// Authorization header alone: one in the query string would end up in logs.
func (e *edge) authenticate(h http.Header) (Identity, error) {
	value, present, err := single(h, "Authorization")
	if err != nil {
		return Identity{}, err
	}
	if !present {
		return Identity{}, problemAuthMissing
	}
	const scheme = "Bearer"
	if len(value) < len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) {
		return Identity{}, problemAuthMissing
	}
	token := value[len(scheme):]
	if token == "" {
		return Identity{}, auth.ErrMalformed
	}
	if token[0] != ' ' {
		return Identity{}, problemAuthMissing // another scheme that begins alike
	}
	return e.Verifier.Verify(strings.TrimLeft(token, " "))
}
