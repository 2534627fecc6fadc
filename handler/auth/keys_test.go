package auth_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"

	"flashsale/handler/auth"
	"flashsale/internal/testing/await"
)

// issuer is an issuer with keys of every kind.
type issuer struct {
	rsa  *rsa.PrivateKey
	weak *rsa.PrivateKey
	ec   *ecdsa.PrivateKey
	ed   ed25519.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	t.Setenv("GODEBUG", "rsa1024min=0") // one key is too small on purpose
	var i issuer
	var err error
	if i.rsa, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	if i.weak, err = rsa.GenerateKey(rand.Reader, 1024); err != nil {
		t.Fatal(err)
	}
	if i.ec, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	if _, i.ed, err = ed25519.GenerateKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	return &i
}

// keySet writes public keys under their names.
func keySet(t *testing.T, keys map[string]crypto.PublicKey, use jwkset.USE) []byte {
	t.Helper()
	var set jwkset.JWKSMarshal
	for kid, key := range keys {
		jwk, err := jwkset.NewJWKFromKey(key, jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: kid, USE: use}})
		if err != nil {
			t.Fatal(err)
		}
		set.Keys = append(set.Keys, jwk.Marshal())
	}
	raw, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func sign(t *testing.T, method jwt.SigningMethod, kid string, key any) string {
	t.Helper()
	token := jwt.NewWithClaims(method, jwt.MapClaims{
		"sub": "alice", "role": "buyer", "aud": auth.Audience, "exp": now.Add(time.Hour).Unix(),
	})
	if kid != "" {
		token.Header["kid"] = kid
	}
	signed, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func writeKeys(t *testing.T, raw []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func openKeys(t *testing.T, c auth.KeysConfig) *auth.Keys {
	t.Helper()
	keys, err := auth.OpenKeys(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestVerifier_Verify_keySet(t *testing.T) {
	i := newIssuer(t)
	raw := keySet(t, map[string]crypto.PublicKey{
		"r": &i.rsa.PublicKey, "weak": &i.weak.PublicKey, "e": &i.ec.PublicKey, "d": i.ed.Public(),
	}, jwkset.UseSig)
	v := newVerifier(t, auth.Config{Keys: openKeys(t, auth.KeysConfig{Source: writeKeys(t, raw)})})
	der, err := x509.MarshalPKIXPublicKey(&i.rsa.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	stranger := newIssuer(t)

	for name, tc := range map[string]struct {
		token string
		want  error
	}{
		"RS256":                     {sign(t, jwt.SigningMethodRS256, "r", i.rsa), nil},
		"ES256":                     {sign(t, jwt.SigningMethodES256, "e", i.ec), nil},
		"EdDSA":                     {sign(t, jwt.SigningMethodEdDSA, "d", i.ed), nil},
		"HS256 with the public key": {sign(t, jwt.SigningMethodHS256, "r", publicPEM), auth.ErrAlgorithm},
		"HS256 with the modulus":    {sign(t, jwt.SigningMethodHS256, "r", i.rsa.N.Bytes()), auth.ErrAlgorithm},
		"none":                      {sign(t, jwt.SigningMethodNone, "r", jwt.UnsafeAllowNoneSignatureType), auth.ErrAlgorithm},
		"RS384, not pinned":         {sign(t, jwt.SigningMethodRS384, "r", i.rsa), auth.ErrAlgorithm},
		"PS256, not pinned":         {sign(t, jwt.SigningMethodPS256, "r", i.rsa), auth.ErrAlgorithm},
		"ES256 under an RSA key":    {sign(t, jwt.SigningMethodES256, "r", i.ec), auth.ErrAlgorithm},
		"another's key":             {sign(t, jwt.SigningMethodRS256, "r", stranger.rsa), auth.ErrSignature},
		"unknown kid":               {sign(t, jwt.SigningMethodRS256, "x", i.rsa), auth.ErrKey},
		"kid with a path":           {sign(t, jwt.SigningMethodRS256, "../r", i.rsa), auth.ErrKey},
		"kid with SQL":              {sign(t, jwt.SigningMethodRS256, "r' OR 'a'='a", i.rsa), auth.ErrKey},
		"no kid, several keys":      {sign(t, jwt.SigningMethodRS256, "", i.rsa), auth.ErrKey},
		"a key too weak":            {sign(t, jwt.SigningMethodRS256, "weak", i.weak), auth.ErrKey},
	} {
		if _, err := v.Verify(tc.token); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
}

func TestVerifier_Verify_oneKey(t *testing.T) {
	i := newIssuer(t)
	only := func(use jwkset.USE) []byte {
		return keySet(t, map[string]crypto.PublicKey{"e": &i.ec.PublicKey}, use)
	}
	v := newVerifier(t, auth.Config{Keys: openKeys(t, auth.KeysConfig{Source: writeKeys(t, only(""))})})
	if _, err := v.Verify(sign(t, jwt.SigningMethodES256, "", i.ec)); err != nil {
		t.Errorf("no kid, one key: %v", err)
	}
	for name, raw := range map[string][]byte{
		"not JSON":           []byte("keys"),
		"no keys":            []byte(`{"keys":[]}`),
		"for encryption":     only(jwkset.UseEnc),
		"shared secret":      []byte(`{"keys":[{"kty":"oct","kid":"o","k":"c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3JldA"}]}`),
		"weak only":          keySet(t, map[string]crypto.PublicKey{"w": &i.weak.PublicKey}, ""),
		"nothing to be read": nil,
	} {
		path := writeKeys(t, raw)
		if raw == nil {
			path += ".absent"
		}
		if _, err := auth.OpenKeys(t.Context(), auth.KeysConfig{Source: path}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestOpenKeys_fileChanges(t *testing.T) {
	i := newIssuer(t)
	path := writeKeys(t, keySet(t, map[string]crypto.PublicKey{"r": &i.rsa.PublicKey}, ""))
	failed := make(chan error, 1)
	keys := openKeys(t, auth.KeysConfig{Source: path, Refresh: time.Millisecond, OnError: func(err error) {
		select {
		case failed <- err:
		default:
		}
	}})
	v := newVerifier(t, auth.Config{Keys: keys, CacheSlots: -1})
	replace := func(raw []byte, age time.Duration) {
		t.Helper()
		next := path + ".next"
		if err := os.WriteFile(next, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		changed := time.Now().Add(age)
		if err := os.Chtimes(next, changed, changed); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, path); err != nil {
			t.Fatal(err)
		}
	}
	old, rotated := sign(t, jwt.SigningMethodRS256, "r", i.rsa), sign(t, jwt.SigningMethodES256, "e", i.ec)

	replace([]byte("broken"), time.Minute)
	select {
	case <-failed: //nolint:errcheck // that it failed is enough
	case <-time.After(await.Limit):
		t.Fatal("a broken file is not reported")
	}
	if _, err := v.Verify(old); err != nil {
		t.Errorf("with a broken file the old keys are gone: %v", err)
	}
	replace(keySet(t, map[string]crypto.PublicKey{"e": &i.ec.PublicKey}, ""), 2*time.Minute)
	await.True(t, "the new key is in use", func() bool {
		_, err := v.Verify(rotated)
		return err == nil
	})
	if _, err := v.Verify(old); !errors.Is(err, auth.ErrKey) {
		t.Errorf("the withdrawn key: %v, want ErrKey", err)
	}
}

func TestOpenKeys_url(t *testing.T) {
	i := newIssuer(t)
	var fetched atomic.Int64
	var served atomic.Pointer[[]byte]
	first := keySet(t, map[string]crypto.PublicKey{"r": &i.rsa.PublicKey}, "")
	second := keySet(t, map[string]crypto.PublicKey{"e": &i.ec.PublicKey}, "")
	served.Store(&first)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fetched.Add(1)
		if _, err := w.Write(*served.Load()); err != nil {
			t.Error(err)
		}
	}))
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	keys, err := auth.OpenKeys(ctx, auth.KeysConfig{Source: srv.URL, Refresh: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	v := newVerifier(t, auth.Config{Keys: keys, CacheSlots: -1})
	if _, err := v.Verify(sign(t, jwt.SigningMethodRS256, "r", i.rsa)); err != nil {
		t.Errorf("a key of the set: %v", err)
	}
	before := fetched.Load()
	for header, value := range map[string]any{"jku": srv.URL, "x5u": srv.URL, "jwk": map[string]string{"kty": "oct"}} {
		token := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{"sub": "alice"})
		token.Header[header] = value
		token.Header["kid"] = "elsewhere"
		signed, err := token.SignedString(i.rsa)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.Verify(signed); !errors.Is(err, auth.ErrKey) {
			t.Errorf("%s: %v, want ErrKey", header, err)
		}
	}
	if got := fetched.Load(); got != before {
		t.Errorf("a token's own header caused %d fetches", got-before)
	}
	// A new key is found before the next refresh. After that, invalid key ids must not cause
	// another fetch.
	served.Store(&second)
	if _, err := v.Verify(sign(t, jwt.SigningMethodES256, "e", i.ec)); err != nil {
		t.Errorf("a new key: %v", err)
	}
	before = fetched.Load()
	for range 3 {
		if _, err := v.Verify(sign(t, jwt.SigningMethodES256, "unknown", i.ec)); !errors.Is(err, auth.ErrKey) {
			t.Errorf("an unknown key: %v, want ErrKey", err)
		}
	}
	if got := fetched.Load(); got != before {
		t.Errorf("unknown keys caused %d more fetches at once", got-before)
	}
	if _, err := auth.OpenKeys(ctx, auth.KeysConfig{Source: "http://127.0.0.1:1/"}); err == nil {
		t.Error("a set that cannot be fetched: no error")
	}
}
