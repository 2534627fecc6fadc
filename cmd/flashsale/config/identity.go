package config

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

	"flashsale/handler/auth"
	"flashsale/internal/plural"
)

// Identity are the settings that define which tokens are accepted.
type Identity struct {
	issuer, audience        string
	subjectClaim, roleClaim string
	roleMap                 []string
	AdminSecret, AdminJWKS  string
	adminIssuer             string
	adminAudience           string
	serviceKey              string
}

// The values of --service-key.
const (
	serviceByAdmins = "admin"
	serviceByBuyers = "buyer"
)

// defineIdentity declares the settings of identity.
func defineIdentity(f *pflag.FlagSet) {
	f.String("issuer", "", "value that the iss of tokens must equal; empty: iss is not checked")
	f.String("audience", auth.Audience, "value that the aud of tokens must contain")
	f.String("subject-claim", auth.DefaultSubjectClaim, "claim that identifies the buyer, admin or service")
	f.String("role-claim", auth.DefaultRoleClaim, "claim that holds the role; dots separate the names of nested claims, for example realm_access.roles")
	f.StringSlice("role-map", nil, "values of the role claim, for example admin=shop-admins,buyer=customers,service=psp; buyer=* maps all other tokens (default: the roles' own names)")
	f.String("admin-jwt-secret", "", "HS256 key of the admins' tokens, 32 bytes or more; the ordinary key then cannot sign admins' tokens")
	f.String("admin-jwks", "", "file or URL of the public keys of the admins' tokens, instead of a secret")
	f.String("admin-issuer", "", "value that the iss of the admins' tokens must equal (default: that of --issuer)")
	f.String("admin-audience", "", "value that the aud of the admins' tokens must contain (default: that of --audience)")
	f.String("service-key", serviceByAdmins, "key that signs the tokens of services if admins have their own: admin or buyer")
}

func (s *Settings) identityTexts() []textSetting {
	i := &s.Identity
	return []textSetting{
		{"issuer", &i.issuer}, {"audience", &i.audience}, {"subject-claim", &i.subjectClaim}, {"role-claim", &i.roleClaim},
		{"admin-jwt-secret", &i.AdminSecret}, {"admin-jwks", &i.AdminJWKS}, {"admin-issuer", &i.adminIssuer},
		{"admin-audience", &i.adminAudience}, {"service-key", &i.serviceKey},
	}
}

func (s *Settings) fillIdentity(k *koanf.Koanf) []error {
	v, err := list(k.Get("role-map"))
	s.Identity.roleMap = v
	if err != nil {
		return []error{BadSetting("role-map", fmt.Sprint(k.Get("role-map")), err.Error(), "write for example [admin=shop-admins, buyer=customers]")}
	}
	return nil
}

// validateIdentity checks the identity settings, including those that exclude each other.
func (s *Settings) validateIdentity(check func(ok bool, name, cause, fix string)) {
	i := &s.Identity
	check(i.audience != "", "audience", "it is empty", "name the audience that your tokens are issued for, or leave the setting out")
	check(auth.ValidSubjectClaim(i.subjectClaim), "subject-claim", "it is empty or has another meaning in a token", "name the claim, for example sub")
	_, err := auth.NewRoles(i.roleClaim, nil)
	check(err == nil, "role-claim", fmt.Sprint(err), "name the claim, for example realm_access.roles")
	check(i.roleClaim != i.subjectClaim, "role-claim", "it is the subject-claim too", "name two claims")
	_, err = auth.NewRoles(auth.DefaultRoleClaim, i.roleMap)
	check(err == nil, "role-map", fmt.Sprint(err), "write for example admin=shop-admins,buyer=customers")
	exact := []textSetting{
		{"issuer", &i.issuer}, {"audience", &i.audience}, {"admin-issuer", &i.adminIssuer}, {"admin-audience", &i.adminAudience},
	}
	for _, t := range exact {
		check(strings.TrimSpace(*t.to) == *t.to, t.name, "it begins or ends with a space", "remove the space: tokens have to match exactly")
	}
	check(i.serviceKey == serviceByAdmins || i.serviceKey == serviceByBuyers, "service-key", "unknown key", "use admin or buyer")

	s.validateAdmins(check)
}

// validateAdmins checks that the settings for admins separate them from buyers.
func (s *Settings) validateAdmins(check func(ok bool, name, cause, fix string)) {
	i := &s.Identity
	check(i.AdminSecret == "" || len(i.AdminSecret) >= auth.MinSecret, "admin-jwt-secret", "it has "+plural.Count(len(i.AdminSecret), "byte"), "use 32 or more, for example from openssl rand -hex 32")
	check(i.AdminSecret == "" || i.AdminJWKS == "", "admin-jwks", "there is an admin-jwt-secret too", "set one of the two")
	check(i.AdminSecret == "" || i.AdminSecret != s.JWTSecret, "admin-jwt-secret", "it equals the jwt-secret, so the signer of buyers' tokens could sign admins' tokens", "use another secret")
	differs := i.adminIssuer != "" && i.adminIssuer != i.issuer || i.adminAudience != "" && i.adminAudience != i.audience
	check(i.AdminJWKS == "" || i.AdminJWKS != s.JWKS || differs, "admin-jwks", "it equals the jwks, and neither admin-issuer nor admin-audience separates admins",
		"name a separate key set for admins, or set admin-issuer or admin-audience")
	if i.AdminSecret != "" || i.AdminJWKS != "" {
		return
	}
	for _, t := range []textSetting{{"admin-issuer", &i.adminIssuer}, {"admin-audience", &i.adminAudience}} {
		value, name := *t.to, t.name
		check(value == "" || s.JWKS != "", name, "admins have no separate key, and the holder of the jwt-secret can sign for any issuer and audience",
			"set admin-jwt-secret or admin-jwks as well")
		check(value == "" || s.JWKS == "" || differs, name, "it does not separate admins from buyers: buyers have the same value", "use another value, or set admin-jwks")
	}
}

// Separate reports whether admins have their own signer.
func (i *Identity) Separate() bool {
	return i.AdminSecret != "" || i.AdminJWKS != "" || i.adminIssuer != "" || i.adminAudience != ""
}

// Terms are the required claims of buyers' tokens, and of admins' tokens unless they have their
// own signer. The settings must have been validated.
func (s *Settings) Terms() (auth.Terms, error) {
	i := &s.Identity
	roles, err := auth.NewRoles(i.roleClaim, i.roleMap)
	return auth.Terms{Issuer: i.issuer, Audience: i.audience, SubjectClaim: i.subjectClaim, Roles: roles}, err
}

// adminSigns reports whether the admins' signer signs for the role.
func (i *Identity) adminSigns(role auth.Role) bool {
	return i.Separate() && (role == auth.RoleAdmin || role == auth.RoleService && i.serviceKey == serviceByAdmins)
}

// Signer returns the key for tokens of the role and their required claims. The key is the
// configured secret or that of development mode. It creates no key, because only the service
// knows where its key belongs.
func (s *Settings) Signer(role auth.Role) (key []byte, terms auth.Terms, err error) {
	if terms, err = s.Terms(); err != nil {
		return nil, terms, err
	}
	i := &s.Identity
	admin := i.adminSigns(role)
	if admin && i.adminIssuer != "" {
		terms.Issuer = i.adminIssuer
	}
	if admin && i.adminAudience != "" {
		terms.Audience = i.adminAudience
	}
	const publicOnly, where = "public keys cannot sign", "sign the token where the private key is; commands that use the API take it with --token"
	switch {
	case admin && i.AdminSecret != "":
		return []byte(i.AdminSecret), terms, nil
	case admin && i.AdminJWKS != "":
		return nil, terms, BadSetting("admin-jwks", i.AdminJWKS, publicOnly, where)
	case s.JWTSecret != "":
		return []byte(s.JWTSecret), terms, nil
	case s.JWKS != "":
		return nil, terms, BadSetting("jwks", s.JWKS, publicOnly, where)
	case i.Separate():
		return nil, terms, FailedSetting("jwt-secret", "", fmt.Sprintf("tokens of the role %s are signed with the ordinary key, and only the admins' is set", role), "set the key of the service")
	}
	key, err = readDevKey(s.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, terms, FailedSetting("jwt-secret", "", "no key is set, and there is no development key in "+s.DataDir,
			"set the key of the service, or name its folder with --data-dir; flashsale serve makes a development key when it first starts")
	}
	return key, terms, err
}

// Sign signs a token with the key and the terms that Signer returned.
func (s *Settings) Sign(key []byte, terms auth.Terms, sub string, role auth.Role, ttl time.Duration) (string, error) {
	token, err := terms.Sign(key, sub, role, ttl, time.Now())
	if errors.Is(err, auth.ErrUnmapped) {
		return "", BadSetting("role-map", s.values["role-map"], "no value is mapped to the role "+string(role), "add "+string(role)+"=VALUE")
	}
	return token, err
}

// OpenVerifier returns the verifier of the settings. dev is the key of development mode, or
// nil. Key sets are refreshed until ctx ends.
func (s *Settings) OpenVerifier(ctx context.Context, dev []byte, onError func(error)) (*auth.Verifier, error) {
	terms, err := s.Terms()
	if err != nil {
		return nil, err
	}
	c := auth.Config{Terms: terms, Leeway: s.TokenLeeway, Secret: dev}
	if c.Leeway == 0 {
		c.Leeway = -1 // no leeway: for the verifier, 0 is the default
	}
	if s.JWTSecret != "" {
		c.Secret = []byte(s.JWTSecret)
	}
	if c.Keys, err = openKeys(ctx, "jwks", s.JWKS, onError); err != nil {
		return nil, err
	}
	if i := &s.Identity; i.Separate() {
		c.Admin = &auth.AdminConfig{Issuer: i.adminIssuer, Audience: i.adminAudience, Service: i.serviceKey == serviceByAdmins}
		if i.AdminSecret != "" {
			c.Admin.Secret = []byte(i.AdminSecret)
		}
		if c.Admin.Keys, err = openKeys(ctx, "admin-jwks", i.AdminJWKS, onError); err != nil {
			return nil, err
		}
	}
	v, err := auth.NewVerifier(c)
	if errors.Is(err, auth.ErrNotSeparate) {
		return nil, FailedSetting("admin-jwks", s.Identity.AdminJWKS, "it holds a key that jwks holds too, so whatever signs for buyers could sign for admins",
			"give admins other keys, or set admin-issuer or admin-audience")
	}
	return v, err
}

// openKeys opens the key set of a setting, or returns nil if the setting is empty.
func openKeys(ctx context.Context, setting, source string, onError func(error)) (*auth.Keys, error) {
	if source == "" {
		return nil, nil
	}
	keys, err := auth.OpenKeys(ctx, auth.KeysConfig{Source: source, OnError: onError})
	if err != nil {
		return nil, FailedSetting(setting, source, err.Error(), "name a readable JWK set: its file, or a URL that answers")
	}
	return keys, nil
}

// NeedKey refuses to serve without a key for buyers' tokens, except in development mode, which
// has a key for all roles.
func (s *Settings) NeedKey(command string) error {
	switch {
	case s.JWTSecret != "" || s.JWKS != "":
		return nil
	case s.Identity.Separate():
		return BadSetting("jwt-secret", "", "admins have a signer of their own, and there is no key for the tokens of buyers", "set FLASHSALE_JWT_SECRET or FLASHSALE_JWKS as well")
	case command != "serve" || !loopback(s.Addr):
		return BadSetting("jwt-secret", "", "there is no key, and development mode is for flashsale serve on a loopback address",
			"set FLASHSALE_JWT_SECRET or FLASHSALE_JWKS")
	}
	return nil
}
