package auth_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"flashsale/handler/auth"
)

// refusals are the only errors that Verify may return.
var refusals = []error{
	auth.ErrMalformed, auth.ErrAlgorithm, auth.ErrKey, auth.ErrSignature,
	auth.ErrExpired, auth.ErrNotYetValid, auth.ErrClaims, auth.ErrAudience, auth.ErrIssuer, auth.ErrRole,
}

// checkToken verifies a token and compares the result with the library's: Verify accepts no
// token that the library refuses or reads differently, a second call has the same result, and
// errors are those of the package.
func checkToken(t *testing.T, v *auth.Verifier, token string) (accepted bool) {
	t.Helper()
	id, err := v.Verify(token)
	if again, errAgain := v.Verify(token); again != id || !errors.Is(errAgain, err) {
		t.Fatalf("%q: first %+v, %v, then %+v, %v", token, id, err, again, errAgain)
	}
	if err != nil {
		if !slices.ContainsFunc(refusals, func(known error) bool { return errors.Is(err, known) }) {
			t.Fatalf("%q is refused with %v, which no caller can tell apart", token, err)
		}
		return false
	}
	claims := jwt.MapClaims{}
	_, err = jwt.ParseWithClaims(token, claims, func(*jwt.Token) (any, error) { return secret, nil },
		jwt.WithValidMethods([]string{"HS256"}), jwt.WithTimeFunc(func() time.Time { return now }),
		jwt.WithAudience(auth.Audience), jwt.WithExpirationRequired())
	// The library truncates a date to whole seconds, and treats one beyond its range as past.
	exp, isNumber := claims["exp"].(float64)
	if errors.Is(err, jwt.ErrTokenExpired) && isNumber && exp > float64(now.Unix()) {
		err = nil
	}
	if err != nil {
		t.Fatalf("accepted %q, which the library refuses: %v", token, err)
	}
	if claims["sub"] != id.Subject || claims["role"] != string(id.Role) {
		t.Fatalf("%q identifies %+v, but the library reads %v", token, id, claims)
	}
	if !auth.ValidSubject(id.Subject) || !id.Expires.After(now) {
		t.Fatalf("%q speaks for %+v at %s", token, id, now)
	}
	return true
}

// A token is untrusted text whose header and claims may have been written by any issuer. No
// byte of an accepted token may be changed.
func FuzzVerify(f *testing.F) {
	good := hs256(goodHeader, goodClaims(f, nil))
	for _, token := range []string{
		good, hs256(`{"alg":"none"}`, `{}`), "a.b.c", "..", "", good + ".", strings.TrimRight(good, "ABCDEFabcdef0123456789_-"),
		goodClaims(f, nil), goodClaims(f, map[string]any{"aud": []string{"a", "flashsale"}}), goodClaims(f, map[string]any{"nbf": 1.5}),
		`{"sub":"alice","sub":"bob","role":"buyer","aud":"flashsale","exp":9999999999}`,
		goodHeader, `{"alg":"HS256","kid":"a"}`, `{"alg":"HS256","crit":["x"],"x":1}`, `{"alg":"HS256","alg":"none"}`,
	} {
		f.Add(token, uint16(len(token)/2))
	}
	v := newVerifier(f, auth.Config{Secret: secret, Leeway: -1}) // the library has no leeway
	f.Fuzz(func(t *testing.T, text string, at uint16) {
		spellings := []string{text, hs256(goodHeader, text), hs256(text, goodClaims(t, nil))}
		for _, token := range spellings {
			if !checkToken(t, v, token) {
				continue
			}
			altered := []byte(token)
			altered[int(at)%len(altered)] ^= 1
			if id, err := v.Verify(string(altered)); err == nil {
				t.Fatalf("%q, altered to %q, identifies %+v", token, altered, id)
			}
		}
		if _, err := v.Verify(hs256(text, `{}`)); err == nil {
			t.Fatalf("accepted empty claims under the header %q", text)
		}
	})
}
