package auth_test

import (
	"crypto"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"

	"flashsale/handler/auth"
)

var adminSecret = []byte("another secret of the tests, which signs for admins")

// signed signs claims with any secret.
func signed(key []byte, claims string) string {
	text := b64(goodHeader) + "." + b64(claims)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Two secrets have the same algorithm and no key ids. Only the token's role decides which of
// them may sign, no matter which tokens were verified before.
func TestVerifier_Verify_adminSecret(t *testing.T) {
	t.Parallel()
	stranger := []byte("a secret that the service does not know at all")
	buyer, admin, service := goodClaims(t, nil), goodClaims(t, map[string]any{"role": "admin"}), goodClaims(t, map[string]any{"role": "service"})
	for name, tc := range map[string]struct {
		key     []byte
		claims  string
		service bool
		want    error
	}{
		"buyer by the buyers' key":                 {secret, buyer, true, nil},
		"admin by the admins' key":                 {adminSecret, admin, true, nil},
		"service by the admins' key":               {adminSecret, service, true, nil},
		"admin by the buyers' key":                 {secret, admin, true, auth.ErrRole},
		"buyer by the admins' key":                 {adminSecret, buyer, true, auth.ErrRole},
		"service by the buyers' key":               {secret, service, true, auth.ErrRole},
		"service left to the buyers' key":          {secret, service, false, nil},
		"service left, by the admins' key":         {adminSecret, service, false, auth.ErrRole},
		"admin by the buyers' key, service left":   {secret, admin, false, auth.ErrRole},
		"admin by a stranger":                      {stranger, admin, true, auth.ErrSignature},
		"buyer by a stranger":                      {stranger, buyer, true, auth.ErrSignature},
		"role twice, by the buyers' key":           {secret, `{"sub":"a","aud":"flashsale","exp":9999999999,"role":"buyer","role":"admin"}`, true, auth.ErrRole},
		"role twice, by the admins' key":           {adminSecret, `{"sub":"a","aud":"flashsale","exp":9999999999,"role":"buyer","role":"admin"}`, true, auth.ErrClaims},
		"admin then buyer, by the buyers' key":     {secret, `{"sub":"a","aud":"flashsale","exp":9999999999,"role":"admin","role":"buyer"}`, true, auth.ErrClaims},
		"no role":                                  {secret, goodClaims(t, map[string]any{"role": nil}), true, auth.ErrClaims},
		"not JSON":                                 {secret, `role`, true, auth.ErrClaims},
		"not JSON from inside, by the admins' key": {adminSecret, `{"role":"admin"`, true, auth.ErrClaims},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVerifier(t, auth.Config{Secret: secret, CacheSlots: 1, Admin: &auth.AdminConfig{Secret: adminSecret, Service: tc.service}})
			token := signed(tc.key, tc.claims)
			// With a single cache slot, every token finds the entry of another.
			for _, other := range []string{"", signed(secret, buyer), signed(adminSecret, admin), token} {
				if other != "" {
					_, err := v.Verify(other)
					if other != token && err != nil {
						t.Fatal(err)
					}
				}
				id, err := v.Verify(token)
				if !errors.Is(err, tc.want) || err != nil && id != (auth.Identity{}) {
					t.Errorf("got %+v, %v; want %v", id, err, tc.want)
				}
			}
		})
	}
}

// A token with several roles including admin needs the admins' key.
func TestVerifier_Verify_adminAmongRoles(t *testing.T) {
	t.Parallel()
	terms := auth.Terms{Roles: newRoles(t, "scope", "admin=shop-admins", "buyer=*")}
	v := newVerifier(t, auth.Config{Secret: secret, Terms: terms, Admin: &auth.AdminConfig{Secret: adminSecret}})
	both := goodClaims(t, map[string]any{"scope": "customers shop-admins"})
	if id, err := v.Verify(signed(secret, both)); !errors.Is(err, auth.ErrRole) {
		t.Errorf("by the buyers' key: %+v, %v", id, err)
	}
	if id, err := v.Verify(signed(adminSecret, both)); err != nil || id.Role != auth.RoleAdmin {
		t.Errorf("by the admins' key: %+v, %v", id, err)
	}
	if id, err := v.Verify(signed(adminSecret, goodClaims(t, nil))); !errors.Is(err, auth.ErrRole) {
		t.Errorf("a buyer by fallback, signed by the admins' key: %+v, %v", id, err)
	}
}

// claimsOf returns valid claims with a role, an issuer and an audience.
func claimsOf(role, iss, aud string) jwt.MapClaims {
	return jwt.MapClaims{"sub": "alice", "role": role, "iss": iss, "aud": aud, "exp": now.Add(time.Hour).Unix()}
}

func signClaims(t *testing.T, method jwt.SigningMethod, kid string, key any, claims jwt.MapClaims) string {
	t.Helper()
	token := jwt.NewWithClaims(method, claims)
	token.Header["kid"] = kid
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Two key sets have the same key id: the id does not select the set.
func TestVerifier_Verify_adminKeySet(t *testing.T) {
	buyers, admins := newIssuer(t), newIssuer(t)
	open := func(i *issuer) *auth.Keys {
		raw := keySet(t, map[string]crypto.PublicKey{"k": &i.rsa.PublicKey}, jwkset.UseSig)
		return openKeys(t, auth.KeysConfig{Source: writeKeys(t, raw)})
	}
	v := newVerifier(t, auth.Config{
		Keys: open(buyers), Terms: auth.Terms{Issuer: "b", Audience: "shop"},
		Admin: &auth.AdminConfig{Keys: open(admins), Issuer: "a", Audience: "back-office", Service: true},
	})
	for name, tc := range map[string]struct {
		by            *issuer
		role, iss, to string
		want          error
	}{
		"buyer":                                 {buyers, "buyer", "b", "shop", nil},
		"admin":                                 {admins, "admin", "a", "back-office", nil},
		"service":                               {admins, "service", "a", "back-office", nil},
		"admin by the buyers' key":              {buyers, "admin", "a", "back-office", auth.ErrRole},
		"admin by the buyers' key, as they are": {buyers, "admin", "b", "shop", auth.ErrRole},
		"buyer by the admins' key":              {admins, "buyer", "b", "shop", auth.ErrRole},
		"admin of the buyers' issuer":           {admins, "admin", "b", "back-office", auth.ErrIssuer},
		"admin for the buyers' audience":        {admins, "admin", "a", "shop", auth.ErrAudience},
		"buyer of the admins' issuer":           {buyers, "buyer", "a", "shop", auth.ErrIssuer},
	} {
		token := signClaims(t, jwt.SigningMethodRS256, "k", tc.by.rsa, claimsOf(tc.role, tc.iss, tc.to))
		for range 2 {
			if _, err := v.Verify(token); !errors.Is(err, tc.want) {
				t.Errorf("%s: got %v, want %v", name, err, tc.want)
			}
		}
	}
}

// Two key sets with a common key separate nothing, unless the issuers or audiences differ.
func TestNewVerifier_adminSharedKey(t *testing.T) {
	buyers, admins := newIssuer(t), newIssuer(t)
	open := func(keys map[string]crypto.PublicKey) *auth.Keys {
		return openKeys(t, auth.KeysConfig{Source: writeKeys(t, keySet(t, keys, jwkset.UseSig))})
	}
	ours := open(map[string]crypto.PublicKey{"a": &buyers.rsa.PublicKey, "b": buyers.ed.Public()})
	common := open(map[string]crypto.PublicKey{"x": &admins.ec.PublicKey, "y": buyers.ed.Public()})
	apart := open(map[string]crypto.PublicKey{"a": &admins.rsa.PublicKey, "b": admins.ed.Public()})
	for name, tc := range map[string]struct {
		admin auth.AdminConfig
		want  error
	}{
		"a key in common":                   {auth.AdminConfig{Keys: common}, auth.ErrNotSeparate},
		"a key in common, another audience": {auth.AdminConfig{Keys: common, Audience: "back-office"}, nil},
		"no key in common":                  {auth.AdminConfig{Keys: apart}, nil},
	} {
		if _, err := auth.NewVerifier(auth.Config{Keys: ours, Admin: &tc.admin}); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
}

// One identity provider signs for both roles, and issues admins' tokens for a different
// audience.
func TestVerifier_Verify_adminAudience(t *testing.T) {
	i := newIssuer(t)
	raw := keySet(t, map[string]crypto.PublicKey{"k": i.ed.Public()}, jwkset.UseSig)
	keys := openKeys(t, auth.KeysConfig{Source: writeKeys(t, raw)})
	v := newVerifier(t, auth.Config{
		Keys: keys, Terms: auth.Terms{Issuer: "i", Audience: "shop"},
		Admin: &auth.AdminConfig{Audience: "back-office", Service: true},
	})
	for _, tc := range []struct {
		role, aud string
		want      error
	}{
		{"buyer", "shop", nil}, {"admin", "back-office", nil}, {"service", "back-office", nil},
		{"admin", "shop", auth.ErrAudience}, {"service", "shop", auth.ErrAudience}, {"buyer", "back-office", auth.ErrAudience},
	} {
		token := signClaims(t, jwt.SigningMethodEdDSA, "k", i.ed, claimsOf(tc.role, "i", tc.aud))
		if _, err := v.Verify(token); !errors.Is(err, tc.want) {
			t.Errorf("%s for %s: got %v, want %v", tc.role, tc.aud, err, tc.want)
		}
	}
}

// Admins have a secret and buyers have public keys: the algorithm belongs to the role's key.
func TestVerifier_Verify_adminSecretBesideKeys(t *testing.T) {
	i := newIssuer(t)
	raw := keySet(t, map[string]crypto.PublicKey{"k": &i.rsa.PublicKey}, jwkset.UseSig)
	v := newVerifier(t, auth.Config{
		Keys:  openKeys(t, auth.KeysConfig{Source: writeKeys(t, raw)}),
		Admin: &auth.AdminConfig{Secret: adminSecret},
	})
	for name, tc := range map[string]struct {
		token string
		want  error
	}{
		"buyer":                           {sign(t, jwt.SigningMethodRS256, "k", i.rsa), nil},
		"admin":                           {signed(adminSecret, goodClaims(t, map[string]any{"role": "admin"})), nil},
		"admin by the buyers' key":        {signClaims(t, jwt.SigningMethodRS256, "k", i.rsa, claimsOf("admin", "", "flashsale")), auth.ErrRole},
		"admin, HS256 with the modulus":   {signed(i.rsa.N.Bytes(), goodClaims(t, map[string]any{"role": "admin"})), auth.ErrSignature},
		"buyer, HS256 with the modulus":   {signed(i.rsa.N.Bytes(), goodClaims(t, nil)), auth.ErrAlgorithm},
		"buyer, HS256 by the admins' key": {signed(adminSecret, goodClaims(t, nil)), auth.ErrRole},
	} {
		if _, err := v.Verify(tc.token); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
}

func TestNewVerifier_adminErr(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]auth.Config{
		"the same secret":           {Secret: secret, Admin: &auth.AdminConfig{Secret: secret}},
		"no key of their own":       {Secret: secret, Admin: &auth.AdminConfig{}},
		"an audience, not a key":    {Secret: secret, Admin: &auth.AdminConfig{Audience: "back-office"}},
		"keys and nothing else":     {Keys: &auth.Keys{}, Admin: &auth.AdminConfig{}},
		"keys, the same issuer":     {Keys: &auth.Keys{}, Terms: auth.Terms{Issuer: "i"}, Admin: &auth.AdminConfig{Issuer: "i"}},
		"a short secret":            {Secret: secret, Admin: &auth.AdminConfig{Secret: secret[:31]}},
		"a secret and keys":         {Secret: secret, Admin: &auth.AdminConfig{Secret: adminSecret, Keys: &auth.Keys{}}},
		"no key of the buyers' own": {Admin: &auth.AdminConfig{Secret: adminSecret}},
	} {
		if _, err := auth.NewVerifier(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
