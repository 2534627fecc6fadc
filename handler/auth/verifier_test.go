package auth_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"flashsale/handler/auth"
)

var (
	secret = []byte("a secret of the tests, long enough for HS256")
	now    = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
)

// clock is a clock that tests set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newVerifier(t testing.TB, c auth.Config) *auth.Verifier {
	t.Helper()
	if c.Now == nil {
		c.Now = func() time.Time { return now }
	}
	v, err := auth.NewVerifier(c)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func b64(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// hs256 signs a header and claims as given, valid or not.
func hs256(header, claims string) string {
	signed := b64(header) + "." + b64(claims)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(signed))
	return signed + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

const goodHeader = `{"alg":"HS256","typ":"JWT"}`

// goodClaims returns valid claims with some replaced; nil removes one.
func goodClaims(t testing.TB, change map[string]any) string {
	t.Helper()
	claims := map[string]any{
		"sub": "alice", "role": "buyer", "aud": "flashsale", "exp": now.Add(time.Hour).Unix(),
	}
	for name, value := range change {
		if value == nil {
			delete(claims, name)
			continue
		}
		claims[name] = value
	}
	text, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// verdict is a token and the error that Verify must return for it.
type verdict struct {
	token string
	want  error
}

// wantVerdicts verifies each token with a verifier without leeway.
func wantVerdicts(t *testing.T, cases map[string]verdict) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVerifier(t, auth.Config{Secret: secret, Leeway: -1})
			// The second time, a cache entry must not change the result.
			for range 2 {
				id, err := v.Verify(tc.token)
				if !errors.Is(err, tc.want) {
					t.Fatalf("got %v, want %v", err, tc.want)
				}
				if (err == nil) != (id != auth.Identity{}) {
					t.Fatalf("identity %+v with error %v", id, err)
				}
			}
		})
	}
}

func TestVerifier_Verify_acceptsValidTokens(t *testing.T) {
	t.Parallel()
	good := func(change map[string]any) string { return hs256(goodHeader, goodClaims(t, change)) }
	plain := hs256(goodHeader, goodClaims(t, nil))
	unix := now.Unix()
	wantVerdicts(t, map[string]verdict{
		"good":            {plain, nil},
		"unknown claims":  {good(map[string]any{"scope": []any{"a", map[string]any{"b": 1}}, "iat": unix}), nil},
		"no typ":          {hs256(`{"alg":"HS256"}`, goodClaims(t, nil)), nil},
		"admin":           {good(map[string]any{"role": "admin"}), nil},
		"every character": {good(map[string]any{"sub": "aZ09._:@-"}), nil},
		"long subject":    {good(map[string]any{"sub": strings.Repeat("a", 128)}), nil},
	})
}

func TestVerifier_Verify_returnsTheIdentity(t *testing.T) {
	t.Parallel()
	token := hs256(goodHeader, goodClaims(t, nil))
	id, err := newVerifier(t, auth.Config{Secret: secret, Leeway: -1}).Verify(token)
	want := auth.Identity{Subject: "alice", Role: auth.RoleBuyer, Expires: id.Expires}
	if err != nil || id != want || !id.Expires.Equal(now.Add(time.Hour)) {
		t.Errorf("got %+v, %v; want %+v", id, err, want)
	}
}

func TestVerifier_Verify_refusesMalformedTokens(t *testing.T) {
	t.Parallel()
	plain := hs256(goodHeader, goodClaims(t, nil))
	parts := strings.Split(plain, ".")
	// 32 bytes leave two bits of the last character unused. Setting one gives another encoding
	// of the same signature.
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, plain[len(plain)-1])
	respelled := plain[:len(plain)-1] + string(alphabet[last|1])
	wantVerdicts(t, map[string]verdict{
		"empty":                  {"", auth.ErrMalformed},
		"garbage":                {"garbage", auth.ErrMalformed},
		"two parts":              {parts[0] + "." + parts[1], auth.ErrMalformed},
		"signature stripped":     {parts[0] + "." + parts[1] + ".", auth.ErrMalformed},
		"no claims":              {parts[0] + ".." + parts[2], auth.ErrMalformed},
		"no header":              {"." + parts[1] + "." + parts[2], auth.ErrMalformed},
		"five parts":             {plain + ".a.b", auth.ErrMalformed},
		"padding":                {parts[0] + "." + parts[1] + "." + parts[2] + "=", auth.ErrMalformed},
		"not base64":             {parts[0] + "." + parts[1] + ".%%%%", auth.ErrMalformed},
		"another spelling":       {respelled, auth.ErrMalformed},
		"line break":             {parts[0] + "." + parts[1] + "." + parts[2][:4] + "\n" + parts[2][4:], auth.ErrMalformed},
		"header not JSON":        {hs256(`alg`, goodClaims(t, nil)), auth.ErrMalformed},
		"header names alg twice": {hs256(`{"alg":"none","alg":"HS256"}`, goodClaims(t, nil)), auth.ErrMalformed},
		"critical extension":     {hs256(`{"alg":"HS256","crit":["b64"],"b64":false}`, goodClaims(t, nil)), auth.ErrMalformed},
		"too long":               {plain + strings.Repeat("A", auth.MaxToken), auth.ErrMalformed},
	})
}

func TestVerifier_Verify_pinsTheAlgorithm(t *testing.T) {
	t.Parallel()
	plain := hs256(goodHeader, goodClaims(t, nil))
	parts := strings.Split(plain, ".")
	wantVerdicts(t, map[string]verdict{
		"alg none":         {b64(`{"alg":"none"}`) + "." + parts[1] + ".", auth.ErrAlgorithm},
		"alg NoNe, signed": {hs256(`{"alg":"NoNe"}`, goodClaims(t, nil)), auth.ErrAlgorithm},
		"alg missing":      {hs256(`{"typ":"JWT"}`, goodClaims(t, nil)), auth.ErrAlgorithm},
		"alg a number":     {hs256(`{"alg":256}`, goodClaims(t, nil)), auth.ErrAlgorithm},
		"alg HS512":        {hs256(`{"alg":"HS512"}`, goodClaims(t, nil)), auth.ErrAlgorithm},
		"alg hs256":        {hs256(`{"alg":"hs256"}`, goodClaims(t, nil)), auth.ErrAlgorithm},
		"alg RS256":        {hs256(`{"alg":"RS256"}`, goodClaims(t, nil)), auth.ErrAlgorithm},
	})
}

func TestVerifier_Verify_checksTheSignature(t *testing.T) {
	t.Parallel()
	plain := hs256(goodHeader, goodClaims(t, nil))
	parts := strings.Split(plain, ".")
	tampered := parts[0] + "." + b64(goodClaims(t, map[string]any{"sub": "mallory"})) + "." + parts[2]
	wantVerdicts(t, map[string]verdict{
		"tampered claims": {tampered, auth.ErrSignature},
		"another header":  {b64(`{"typ":"JWT","alg":"HS256"}`) + "." + parts[1] + "." + parts[2], auth.ErrSignature},
		"short signature": {parts[0] + "." + parts[1] + "." + parts[2][:8], auth.ErrSignature},
	})
}

func TestVerifier_Verify_checksTheTimes(t *testing.T) {
	t.Parallel()
	good := func(change map[string]any) string { return hs256(goodHeader, goodClaims(t, change)) }
	unix := now.Unix()
	wantVerdicts(t, map[string]verdict{
		"expiry with fraction": {good(map[string]any{"exp": float64(unix) + 0.5}), nil},
		"expiry in 9999":       {good(map[string]any{"exp": 253402300799}), nil},
		"expiry in 10000":      {good(map[string]any{"exp": 253402300800}), auth.ErrClaims},
		"expiry 1e15":          {good(map[string]any{"exp": 1e15}), auth.ErrClaims},
		"expiry 1e300":         {hs256(goodHeader, strings.Replace(goodClaims(t, map[string]any{"exp": 77}), ":77", ":1e300", 1)), auth.ErrClaims},
		"expiry -1e300":        {hs256(goodHeader, strings.Replace(goodClaims(t, map[string]any{"exp": 77}), ":77", ":-1e300", 1)), auth.ErrClaims},
		"expiry before 1970":   {good(map[string]any{"exp": -1}), auth.ErrClaims},
		"expiry -0.5":          {good(map[string]any{"exp": -0.5}), auth.ErrClaims},
		"expiry of 20 digits":  {hs256(goodHeader, strings.Replace(goodClaims(t, map[string]any{"exp": 77}), ":77", ":99999999999999999999", 1)), auth.ErrClaims},
		"nbf 1e300":            {hs256(goodHeader, strings.Replace(goodClaims(t, map[string]any{"nbf": 77}), ":77", ":1e300", 1)), auth.ErrClaims},
		"nbf before 1970":      {good(map[string]any{"nbf": -1}), auth.ErrClaims},
		"iat 1e300":            {hs256(goodHeader, strings.Replace(goodClaims(t, map[string]any{"iat": 77}), ":77", ":1e300", 1)), auth.ErrClaims},
		"iat before 1970":      {good(map[string]any{"iat": -1}), auth.ErrClaims},
		"iat with fraction":    {good(map[string]any{"iat": float64(unix) - 0.5}), nil},
		"iat is now":           {good(map[string]any{"iat": unix}), nil},
		"iat in the future":    {good(map[string]any{"iat": unix + 1}), auth.ErrNotYetValid},
		"nbf is now":           {good(map[string]any{"nbf": unix}), nil},
		"expired":              {good(map[string]any{"exp": unix - 1}), auth.ErrExpired},
		"expires now":          {good(map[string]any{"exp": unix}), auth.ErrExpired},
		"expired long ago":     {good(map[string]any{"exp": 0}), auth.ErrExpired},
		"nbf in the future":    {good(map[string]any{"nbf": unix + 1}), auth.ErrNotYetValid},
		"nbf a string":         {good(map[string]any{"nbf": "0"}), auth.ErrClaims},
		"no exp":               {good(map[string]any{"exp": nil}), auth.ErrClaims},
		"exp a string":         {good(map[string]any{"exp": fmt.Sprint(unix + 60)}), auth.ErrClaims},
		"exp null":             {hs256(goodHeader, `{"sub":"alice","role":"buyer","aud":"flashsale","exp":null}`), auth.ErrClaims},
		"exp twice":            {hs256(goodHeader, `{"sub":"alice","role":"buyer","aud":"flashsale","exp":1,"exp":9999999999}`), auth.ErrClaims},
		"exp beyond floats":    {hs256(goodHeader, `{"sub":"alice","role":"buyer","aud":"flashsale","exp":1e999}`), auth.ErrClaims},
		"iat a string":         {good(map[string]any{"iat": "now"}), auth.ErrClaims},
	})
}

func TestVerifier_Verify_checksSubjectAndRole(t *testing.T) {
	t.Parallel()
	good := func(change map[string]any) string { return hs256(goodHeader, goodClaims(t, change)) }
	wantVerdicts(t, map[string]verdict{
		"no sub":                {good(map[string]any{"sub": nil}), auth.ErrClaims},
		"sub empty":             {good(map[string]any{"sub": ""}), auth.ErrClaims},
		"sub too long":          {good(map[string]any{"sub": strings.Repeat("a", 129)}), auth.ErrClaims},
		"sub with a space":      {good(map[string]any{"sub": "al ice"}), auth.ErrClaims},
		"sub with a line break": {good(map[string]any{"sub": "al\nice"}), auth.ErrClaims},
		"sub not ASCII":         {good(map[string]any{"sub": "аlice"}), auth.ErrClaims},
		"sub a number":          {good(map[string]any{"sub": 1}), auth.ErrClaims},
		"no role":               {good(map[string]any{"role": nil}), auth.ErrClaims},
		"role unknown":          {good(map[string]any{"role": "Admin"}), auth.ErrClaims},
		"role a list":           {good(map[string]any{"role": []string{"buyer", "admin"}}), auth.ErrClaims},
		"claims not an object":  {hs256(goodHeader, `["alice"]`), auth.ErrClaims},
		"claims not JSON":       {hs256(goodHeader, `alice`), auth.ErrClaims},
	})
}

func TestVerifier_Verify_checksTheAudience(t *testing.T) {
	t.Parallel()
	good := func(change map[string]any) string { return hs256(goodHeader, goodClaims(t, change)) }
	wantVerdicts(t, map[string]verdict{
		"audiences":           {good(map[string]any{"aud": []string{"shop", "flashsale"}}), nil},
		"no aud":              {good(map[string]any{"aud": nil}), auth.ErrAudience},
		"aud of another":      {good(map[string]any{"aud": "flashsale2"}), auth.ErrAudience},
		"auds of others":      {good(map[string]any{"aud": []string{"a", "b"}}), auth.ErrAudience},
		"aud empty":           {good(map[string]any{"aud": []string{}}), auth.ErrAudience},
		"aud a number":        {good(map[string]any{"aud": 1}), auth.ErrClaims},
		"aud partly a number": {good(map[string]any{"aud": []any{"flashsale", 1}}), auth.ErrClaims},
	})
}

func TestVerifier_Verify_refusesTokensThatNameAKey(t *testing.T) {
	t.Parallel()
	wantVerdicts(t, map[string]verdict{
		"jwk":          {hs256(`{"alg":"HS256","jwk":{"kty":"oct","k":"AAAA"}}`, goodClaims(t, nil)), auth.ErrKey},
		"jku":          {hs256(`{"alg":"HS256","jku":"http://127.0.0.1:1/keys"}`, goodClaims(t, nil)), auth.ErrKey},
		"x5u":          {hs256(`{"alg":"HS256","x5u":"http://127.0.0.1:1/cert"}`, goodClaims(t, nil)), auth.ErrKey},
		"x5c":          {hs256(`{"alg":"HS256","x5c":["AAAA"]}`, goodClaims(t, nil)), auth.ErrKey},
		"kid unknown":  {hs256(`{"alg":"HS256","kid":"other"}`, goodClaims(t, nil)), auth.ErrKey},
		"kid a path":   {hs256(`{"alg":"HS256","kid":"../../dev/null"}`, goodClaims(t, nil)), auth.ErrKey},
		"kid SQL":      {hs256(`{"alg":"HS256","kid":"' OR 1=1--"}`, goodClaims(t, nil)), auth.ErrKey},
		"kid empty":    {hs256(`{"alg":"HS256","kid":""}`, goodClaims(t, nil)), auth.ErrKey},
		"kid a number": {hs256(`{"alg":"HS256","kid":1}`, goodClaims(t, nil)), auth.ErrKey},
	})
}

// Clocks differ: each time in a token is extended by the leeway.
func TestVerifier_Verify_leeway(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		leeway time.Duration
		want   time.Duration
	}{
		"default":  {0, 30 * time.Second},
		"none":     {-1, 0},
		"a second": {time.Second, time.Second},
		"longest":  {auth.MaxLeeway, auth.MaxLeeway},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVerifier(t, auth.Config{Secret: secret, Leeway: tc.leeway})
			early, late := now.Add(-tc.want), now.Add(tc.want)
			for _, c := range []struct {
				claim string
				at    time.Time
				want  error
			}{
				{"exp", early, auth.ErrExpired},
				{"exp", early.Add(time.Second), nil},
				{"nbf", late, nil},
				{"nbf", late.Add(time.Second), auth.ErrNotYetValid},
				{"iat", late, nil},
				{"iat", late.Add(time.Second), auth.ErrNotYetValid},
			} {
				token := hs256(goodHeader, goodClaims(t, map[string]any{c.claim: c.at.Unix()}))
				for range 2 { // the second time from the cache
					id, err := v.Verify(token)
					if !errors.Is(err, c.want) {
						t.Errorf("%s %s from now: %v, want %v", c.claim, c.at.Sub(now), err, c.want)
					}
					if c.claim == "exp" && err == nil && !id.Expires.Equal(c.at.Add(tc.want)) {
						t.Errorf("the token expires %s from now, and is said to end %s from now", c.at.Sub(now), id.Expires.Sub(now))
					}
				}
			}
		})
	}
	if _, err := auth.NewVerifier(auth.Config{Secret: secret, Leeway: auth.MaxLeeway + 1}); err == nil {
		t.Error("a leeway above the longest: no error")
	}
}

// A cached token ends at its expiry, or when its cache entry does.
func TestVerifier_Verify_cached(t *testing.T) {
	t.Parallel()
	c := &clock{now: now}
	token, err := auth.SignToken(secret, "alice", auth.RoleBuyer, 90*time.Second, now)
	if err != nil {
		t.Fatal(err)
	}
	v := newVerifier(t, auth.Config{Secret: secret, Now: c.Now, CacheFor: time.Hour, Leeway: 5 * time.Second})
	for range 3 {
		if _, err := v.Verify(token); err != nil {
			t.Fatal(err)
		}
	}
	c.advance(94 * time.Second)
	if _, err := v.Verify(token); err != nil {
		t.Errorf("one second before the end of the leeway: %v", err)
	}
	c.advance(time.Second)
	if _, err := v.Verify(token); !errors.Is(err, auth.ErrExpired) {
		t.Errorf("at the end of the leeway: %v, want ErrExpired", err)
	}
}

// Tokens that share the only slot of the cache never get each other's identity.
func TestVerifier_Verify_oneSlot(t *testing.T) {
	t.Parallel()
	v := newVerifier(t, auth.Config{Secret: secret, CacheSlots: 1})
	var wg sync.WaitGroup
	for i := range 8 {
		sub := fmt.Sprintf("buyer-%d", i)
		token, err := auth.SignToken(secret, sub, auth.RoleBuyer, time.Hour, now)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for range 200 {
				id, err := v.Verify(token)
				if err != nil || id.Subject != sub {
					t.Errorf("got %+v, %v; want %s", id, err, sub)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestNewVerifier_Err(t *testing.T) {
	t.Parallel()
	if _, err := auth.NewVerifier(auth.Config{Secret: secret[:31]}); !errors.Is(err, auth.ErrSecretTooShort) {
		t.Errorf("31 bytes: %v", err)
	}
	if _, err := auth.NewVerifier(auth.Config{}); !errors.Is(err, auth.ErrSecretTooShort) {
		t.Errorf("no key: %v", err)
	}
	if _, err := auth.NewVerifier(auth.Config{Secret: secret, Keys: &auth.Keys{}}); err == nil {
		t.Error("a secret and keys: no error")
	}
	if _, err := auth.NewVerifier(auth.Config{Secret: secret, CacheFor: -1}); err == nil {
		t.Error("negative CacheFor: no error")
	}
}

// The signing library agrees with this package's verification.
func TestSignToken(t *testing.T) {
	t.Parallel()
	token, err := auth.SignToken(secret, "svc", auth.RoleService, time.Minute, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jwt.Parse(token, func(*jwt.Token) (any, error) { return secret, nil },
		jwt.WithValidMethods([]string{"HS256"}), jwt.WithAudience(auth.Audience), jwt.WithExpirationRequired(),
		jwt.WithTimeFunc(func() time.Time { return now })); err != nil {
		t.Errorf("the library refuses it: %v", err)
	}
	for name, sign := range map[string]func() (string, error){
		"short secret": func() (string, error) { return auth.SignToken(secret[:8], "a", auth.RoleBuyer, time.Hour, now) },
		"bad subject":  func() (string, error) { return auth.SignToken(secret, "a b", auth.RoleBuyer, time.Hour, now) },
		"bad role":     func() (string, error) { return auth.SignToken(secret, "a", "root", time.Hour, now) },
		"no lifetime":  func() (string, error) { return auth.SignToken(secret, "a", auth.RoleBuyer, 0, now) },
	} {
		if _, err := sign(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestVerifier_Verify_allocs(t *testing.T) {
	v := newVerifier(t, auth.Config{Secret: secret})
	token := hs256(goodHeader, goodClaims(t, nil))
	if n := testing.AllocsPerRun(100, func() {
		if _, err := v.Verify(token); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("a known token costs %v allocations, want none", n)
	}
}
