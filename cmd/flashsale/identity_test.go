//go:build unix

package main_test

import (
	"strings"
	"testing"

	"flashsale/internal/testing/process"
)

const adminSecret = "process-tests-secret-of-admins-longer-than-32"

// tokenOf signs a token with the command.
func (s *shop) tokenOf(env []string, role string, args ...string) string {
	s.t.Helper()
	r := s.runWith(env, append([]string{"token", "--sub", "alice", "--role", role}, args...)...)
	wantCode(s.t, 0, r)
	return strings.TrimSpace(r.Output)
}

// wantVerdicts makes a request with each token, and checks the verdict.
func wantVerdicts(t *testing.T, c *client, path string, tokens map[string]string, want map[string]string) {
	t.Helper()
	for name, verdict := range want {
		a, err := c.do("GET", path, tokens[name], "")
		if got := strings.TrimSuffix(a.verdict(), " "); err != nil || got != verdict {
			t.Errorf("GET %s with the token %q: %s, error %v; want %s", path, name, got, err, verdict)
		}
	}
}

// TestIdentity_ProviderTokensAreAccepted runs the service and the command line with the tokens
// of an identity provider: issuer, audience, and roles in a nested claim.
func TestIdentity_ProviderTokensAreAccepted(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	env := []string{"FLASHSALE_JWT_SECRET=" + secret}
	file := writeFile(t, "shop.yaml", "issuer: https://id.example/realms/shop\naudience: shop-api\nrole-claim: realm_access.roles\n"+
		"role-map: [admin=shop-admins, buyer=customers, service=psp]\n")
	p := s.serve("--config", file)
	c := dial(t, p)
	tokens := map[string]string{
		"default claims":   s.tokenOf(env, "buyer"),
		"buyer":            s.tokenOf(env, "buyer", "--config", file),
		"admin":            s.tokenOf(env, "admin", "--config", file),
		"another issuer":   s.tokenOf(env, "buyer", "--config", file, "--issuer", "https://id.example/realms/other"),
		"another audience": s.tokenOf(env, "buyer", "--config", file, "--audience", "flashsale"),
		"unmapped value":   s.tokenOf(env, "buyer", "--config", file, "--role-map", "buyer=guests"),
	}
	wantVerdicts(t, c, "/v1/orders", tokens, map[string]string{
		"default claims": "401 token_issuer", "buyer": "200", "admin": "200", "another issuer": "401 token_issuer",
		"another audience": "401 token_audience", "unmapped value": "401 token_claims",
	})
	wantVerdicts(t, c, "/v1/admin/queue", tokens, map[string]string{"buyer": "403 forbidden", "admin": "200"})
	wantCode(t, 0, s.run("item", "create", "--id", "drop-1", "--name", "Drop", "--price-minor", "1", "--stock", "5", "--payment-window", "none", "--server", p.URL(), "--config", file), "drop-1")
	wantCode(t, 1, s.run("queue", "stats", "--server", p.URL()), "token_issuer")
	// Environment variables instead of the file.
	fromEnv := append(env, "FLASHSALE_ISSUER=https://id.example/realms/shop", "FLASHSALE_AUDIENCE=shop-api",
		"FLASHSALE_ROLE_CLAIM=realm_access.roles", "FLASHSALE_ROLE_MAP=admin=shop-admins,buyer=customers")
	wantCode(t, 0, s.runWith(fromEnv, "queue", "stats", "--server", p.URL()), "orders-0")
	wantCode(t, 2, s.runWith(fromEnv, "token", "--sub", "psp", "--role", "service"), "role-map", "service")
}

// TestIdentity_AdminKeySeparatesRoles gives admins their own key, which the command line uses.
func TestIdentity_AdminKeySeparatesRoles(t *testing.T) {
	needProcesses(t)
	buyers := []string{"FLASHSALE_JWT_SECRET=" + secret}
	both := append(buyers, "FLASHSALE_ADMIN_JWT_SECRET="+adminSecret)
	swapped := []string{"FLASHSALE_JWT_SECRET=" + adminSecret}
	for service, want := range map[string]map[string]string{
		"admin": {
			"buyer": "200", "admin": "200", "service": "403 forbidden", "admin by the buyers' key": "401 token_role",
			"buyer by the admins' key": "401 token_role", "service by the buyers' key": "401 token_role", "service by the admins' key": "403 forbidden",
		},
		"buyer": {
			"buyer": "200", "admin": "200", "service": "403 forbidden", "admin by the buyers' key": "401 token_role",
			"buyer by the admins' key": "401 token_role", "service by the buyers' key": "403 forbidden", "service by the admins' key": "401 token_role",
		},
	} {
		t.Run("service signed by the key of "+service, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			spec := s.spec("serve", []string{"--demo=false", "--service-key", service})
			spec.Env = both
			p := process.Start(t, spec)
			c := dial(t, p)
			tokens := map[string]string{
				"buyer": s.tokenOf(both, "buyer"), "admin": s.tokenOf(both, "admin"), "service": s.tokenOf(both, "service", "--service-key", service),
				"admin by the buyers' key": s.tokenOf(buyers, "admin"), "buyer by the admins' key": s.tokenOf(swapped, "buyer"),
				"service by the buyers' key": s.tokenOf(buyers, "service"), "service by the admins' key": s.tokenOf(swapped, "service"),
			}
			for range 2 { // the second time with the results of the first in the cache
				wantVerdicts(t, c, "/v1/orders", tokens, want)
			}
			r := s.runWith(both, "item", "create", "--id", "drop-1", "--name", "Drop", "--price-minor", "1", "--stock", "5", "--payment-window", "none", "--server", p.URL())
			wantCode(t, 0, r, "drop-1")
			// An operator only needs the admins' key.
			wantCode(t, 0, s.runWith(both[1:], "queue", "stats", "--server", p.URL()), "orders-0")
			wantCode(t, 1, s.runWith(both[1:], "token", "--sub", "alice"), "jwt-secret", "buyer")
			wantCode(t, 1, s.runWith(buyers, "queue", "stats", "--server", p.URL()), "token_role")
		})
	}
}

// Settings that do not separate the roles are refused, and the secrets are hidden.
func TestIdentity_SettingsMustSeparateRoles(t *testing.T) {
	needProcesses(t)
	const keys = "https://id.example/keys"
	for _, q := range []struct {
		args  []string
		words []string
	}{
		{[]string{"--audience="}, []string{"audience", "empty"}},
		{[]string{"--issuer", "https://id.example "}, []string{"issuer", "space"}},
		{[]string{"--subject-claim", "exp"}, []string{"subject-claim", "exp"}},
		{[]string{"--role-claim", "a..b"}, []string{"role-claim", "a..b"}},
		{[]string{"--role-claim", "aud"}, []string{"role-claim", "aud"}},
		{[]string{"--role-claim", "uid", "--subject-claim", "uid"}, []string{"role-claim", "subject-claim"}},
		{[]string{"--role-map", "admin"}, []string{"role-map", "ROLE=VALUE"}},
		{[]string{"--role-map", "king=x"}, []string{"role-map", "king"}},
		{[]string{"--role-map", "admin=*"}, []string{"role-map", "buyer=*"}},
		{[]string{"--role-map", "admin=x,buyer=x"}, []string{"role-map", "admin", "buyer"}},
		{[]string{"--service-key", "both"}, []string{"service-key", "both"}},
		{[]string{"--admin-jwt-secret", adminSecret[:31]}, []string{"admin-jwt-secret", "31"}},
		{[]string{"--admin-jwt-secret", adminSecret, "--admin-jwks", keys}, []string{"admin-jwks", "admin-jwt-secret"}},
		{[]string{"--jwt-secret", adminSecret, "--admin-jwt-secret", adminSecret}, []string{"admin-jwt-secret", "another secret"}},
		{[]string{"--jwks", keys, "--admin-jwks", keys}, []string{"admin-jwks", "admin-audience"}},
		{[]string{"--jwt-secret", secret, "--admin-issuer", "https://admins.example"}, []string{"admin-issuer", "admin-jwt-secret"}},
		{[]string{"--jwt-secret", secret, "--admin-audience", "back-office"}, []string{"admin-audience", "admin-jwt-secret"}},
		{[]string{"--jwks", keys, "--audience", "shop", "--admin-audience", "shop"}, []string{"admin-audience", "buyers"}},
	} {
		r := command(t, append([]string{"config"}, q.args...)...)
		wantCode(t, 2, r, q.words...)
		if strings.Contains(r.Output, adminSecret[:10]) {
			t.Errorf("%v: the secret is printed:\n%s", q.args, r.Output)
		}
	}
	values, origins := effective(t, process.Run(t, process.Spec{Command: "config", Env: []string{
		"FLASHSALE_JWT_SECRET=" + secret, "FLASHSALE_ADMIN_JWT_SECRET=" + adminSecret, "FLASHSALE_ROLE_MAP=admin=a,buyer=*",
	}}))
	for name, want := range map[string]string{
		"admin-jwt-secret": "********", "jwt-secret": "********", "role-map": "admin=a,buyer=*", "audience": "flashsale",
		"role-claim": "role", "subject-claim": "sub", "service-key": "admin", "issuer": `""`,
	} {
		if values[name] != want {
			t.Errorf("config: %s is %s, want %s", name, values[name], want)
		}
	}
	if origins["admin-jwt-secret"] != "environment FLASHSALE_ADMIN_JWT_SECRET" {
		t.Errorf("config: admin-jwt-secret is from %s", origins["admin-jwt-secret"])
	}
	// Without a key for buyers the service would otherwise run in development mode.
	refused(t, process.Spec{Command: "serve", Env: []string{"FLASHSALE_ADMIN_JWT_SECRET=" + adminSecret}}, "jwt-secret", "buyers")
}

// The doctor recommends separate keys, but does not fail.
func TestIdentity_DoctorNotesASharedKey(t *testing.T) {
	needProcesses(t)
	needSynced(t)
	s := newShop(t)
	buyers := []string{"FLASHSALE_JWT_SECRET=" + secret}
	const note = "note keys buyers and admins share a key"
	wantCode(t, 0, squeezed(s.runWith(buyers, "doctor")), "ok keys", note, "FLASHSALE_ADMIN_JWT_SECRET")
	r := squeezed(s.runWith(append(buyers, "FLASHSALE_ADMIN_JWT_SECRET="+adminSecret), "doctor"))
	wantCode(t, 0, r, "ok keys", "of admins")
	if strings.Contains(r.Output, "share a key") {
		t.Errorf("the doctor notes a shared key where there are two:\n%s", r.Output)
	}
	if r := squeezed(s.runWith(nil, "doctor")); strings.Contains(r.Output, "share a key") {
		t.Errorf("the doctor notes a shared key in development mode:\n%s", r.Output)
	}
	wantCode(t, 1, squeezed(s.runWith(append(buyers, "FLASHSALE_ADMIN_JWKS=missing.json"), "doctor")), "fix keys", "admin-jwks", "missing.json")
}
