package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"flashsale/internal/wire"
)

// tokenLife is how long the tokens of a run are valid. It is longer than any run.
const tokenLife = 6 * time.Hour

var errNoTokens = errors.New("loadtest: cannot get tokens")

// minter makes tokens: with the service's key if it is known, and otherwise through
// POST /dev/tokens of a service in development mode.
type minter struct {
	secret []byte
	target wire.Target
	expiry *jwt.NumericDate
}

func newMinter(secret string, target wire.Target, now time.Time) *minter {
	return &minter{secret: []byte(secret), target: target, expiry: jwt.NewNumericDate(now.Add(tokenLife))}
}

func (m *minter) sign(sub, role string) (string, error) {
	t := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"sub": sub, "role": role, "aud": "flashsale", "exp": m.expiry,
	})
	signed, err := t.SignedString(m.secret)
	if err != nil {
		return "", fmt.Errorf("sign token of %s: %w", sub, err)
	}
	return signed, nil
}

// admin returns a token of role admin.
func (m *minter) admin(ctx context.Context) (string, error) {
	if len(m.secret) > 0 {
		return m.sign("loadtest-admin", "admin")
	}
	a := newAPI(m.target, "")
	defer a.close()
	return m.ask(ctx, a, "loadtest-admin", "admin")
}

// headers returns the Authorization values of all buyers, in their order.
func (m *minter) headers(ctx context.Context, buyers []string) ([]string, error) {
	const together = 16
	out := make([]string, len(buyers))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for part := range together {
		wg.Go(func() {
			a := newAPI(m.target, "")
			defer a.close()
			for i := part; i < len(buyers); i += together {
				token, err := m.token(ctx, a, buyers[i])
				if err != nil {
					cancel(err) // the others stop too
					return
				}
				out[i] = "Bearer " + token
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return out, nil
}

func (m *minter) token(ctx context.Context, a *api, sub string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if len(m.secret) > 0 {
		return m.sign(sub, "buyer")
	}
	return m.ask(ctx, a, sub, "buyer")
}

func (m *minter) ask(ctx context.Context, a *api, sub, role string) (string, error) {
	body, err := json.Marshal(map[string]string{"sub": sub, "role": role})
	if err != nil {
		return "", fmt.Errorf("ask for a token: %w", err)
	}
	res, err := a.call(ctx, "POST", "/dev/tokens", body)
	if err != nil {
		return "", fmt.Errorf("ask for a token: %w", err)
	}
	if res.status == 404 || res.status == 405 {
		return "", fmt.Errorf("%w: the service does not run in development mode; set %s to its key", errNoTokens, secretEnv)
	}
	var answer struct {
		Token string `json:"token"`
	}
	if err := res.decode(&answer); err != nil {
		return "", fmt.Errorf("ask for a token: %w", err)
	}
	if answer.Token == "" {
		return "", fmt.Errorf("%w: POST /dev/tokens gave none", errNoTokens)
	}
	return answer.Token, nil
}

// newRunID returns a short random name for a run, fit for item ids.
func newRunID() string {
	var b [5]byte
	rand.Read(b[:]) // it never fails: it ends the process instead
	return hex.EncodeToString(b[:])
}

// newSecret returns a random key for a service started here.
func newSecret() string {
	var b [32]byte
	rand.Read(b[:]) // it never fails: it ends the process instead
	return hex.EncodeToString(b[:])
}
