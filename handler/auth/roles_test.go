package auth_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/handler/auth"
)

func newRoles(t testing.TB, claim string, mappings ...string) *auth.Roles {
	t.Helper()
	r, err := auth.NewRoles(claim, mappings)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Identity providers write roles in many forms. Each form gives one role, or the token is
// refused.
func TestVerifier_Verify_roles(t *testing.T) {
	t.Parallel()
	shop := []string{"admin=shop-admins", " admin=owners", "buyer=customers", "service=psp "}
	open := append(slices.Clone(shop), "buyer=*")
	const keycloak, auth0 = "realm_access.roles", "https://shop.example/roles"
	for name, tc := range map[string]struct {
		claim    string
		mappings []string
		claims   string // of the role
		want     auth.Role
	}{
		"default":                          {"role", nil, `"role":"service"`, auth.RoleService},
		"default, a list":                  {"role", nil, `"role":["buyer"]`, ""},
		"default, words":                   {"role", nil, `"role":"buyer admin"`, ""},
		"default, another claim":           {"role", nil, `"roles":"buyer"`, ""},
		"another claim":                    {"roles", nil, `"roles":["buyer"]`, auth.RoleBuyer},
		"the contract's claim as well":     {"roles", nil, `"roles":["buyer"],"role":"admin"`, auth.RoleBuyer},
		"Keycloak":                         {keycloak, shop, `"realm_access":{"roles":["offline_access","customers"]}`, auth.RoleBuyer},
		"Keycloak, escaped":                {keycloak, shop, `"realm_access":{"r\u006fles":["c\u0075stomers"]}`, auth.RoleBuyer},
		"Keycloak, a client's":             {`resource_access.shop\.example.roles`, shop, `"resource_access":{"shop.example":{"roles":["psp"]}}`, auth.RoleService},
		"Keycloak, a name with the path":   {keycloak, shop, `"realm_access.roles":["shop-admins"]`, ""},
		"Keycloak, no roles":               {keycloak, shop, `"realm_access":{}`, ""},
		"Keycloak, no object":              {keycloak, open, `"realm_access":["customers"]`, ""},
		"Keycloak, roles twice":            {keycloak, shop, `"realm_access":{"roles":["customers"],"roles":["shop-admins"]}`, ""},
		"Auth0":                            {auth0, shop, `"https://shop.example/roles":["shop-admins"]`, auth.RoleAdmin},
		"scope":                            {"scope", shop, `"scope":"openid customers profile"`, auth.RoleBuyer},
		"a value with a space":             {"groups", []string{"buyer=Shop Buyers"}, `"groups":["Shop Buyers"]`, auth.RoleBuyer},
		"a string with a space":            {"groups", []string{"buyer=Shop Buyers"}, `"groups":"Shop Buyers"`, auth.RoleBuyer},
		"second value of a role":           {"scope", shop, `"scope":"owners"`, auth.RoleAdmin},
		"admin wins":                       {"scope", shop, `"scope":"customers psp shop-admins"`, auth.RoleAdmin},
		"admin wins in any order":          {"scope", shop, `"scope":["shop-admins","psp","customers"]`, auth.RoleAdmin},
		"service wins over buyer":          {"scope", open, `"scope":"customers psp"`, auth.RoleService},
		"mapped names replace the roles'":  {"scope", shop, `"scope":"admin"`, ""},
		"other capitals":                   {"scope", shop, `"scope":"Customers"`, ""},
		"part of a word":                   {"scope", shop, `"scope":"shop-admins-not"`, ""},
		"part of a value in a list":        {"scope", shop, `"scope":["x customers"]`, ""},
		"unknown value":                    {"scope", shop, `"scope":"openid"`, ""},
		"no value":                         {"scope", shop, `"scope":[]`, ""},
		"missing":                          {"scope", shop, `"x":1`, ""},
		"fallback, unknown value":          {"scope", open, `"scope":"openid"`, auth.RoleBuyer},
		"fallback, no value":               {"scope", open, `"scope":[]`, auth.RoleBuyer},
		"fallback, missing":                {"scope", open, `"x":1`, auth.RoleBuyer},
		"fallback, missing below":          {keycloak, open, `"realm_access":{}`, auth.RoleBuyer},
		"fallback, a role's name":          {"scope", open, `"scope":"admin"`, auth.RoleBuyer},
		"fallback, the star":               {"scope", open, `"scope":"*"`, auth.RoleBuyer},
		"fallback, admin":                  {"scope", open, `"scope":"x shop-admins"`, auth.RoleAdmin},
		"fallback, a number":               {"scope", open, `"scope":1`, ""},
		"fallback, null":                   {"scope", open, `"scope":null`, ""},
		"fallback, a list with a number":   {"scope", open, `"scope":["customers",1]`, ""},
		"fallback, a list of lists":        {"scope", open, `"scope":[["customers"]]`, ""},
		"fallback, named twice":            {"scope", open, `"scope":"x","scope":"shop-admins"`, ""},
		"fallback, an object":              {"scope", open, `"scope":{"shop-admins":true}`, ""},
		"admin only where it is mapped to": {"scope", []string{"buyer=customers"}, `"scope":"customers admin"`, auth.RoleBuyer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVerifier(t, auth.Config{Secret: secret, Terms: auth.Terms{Roles: newRoles(t, tc.claim, tc.mappings...)}})
			token := hs256(goodHeader, `{"sub":"alice","aud":"flashsale","exp":9999999999,`+tc.claims+`}`)
			for range 2 { // the second time from the cache
				id, err := v.Verify(token)
				if id.Role != tc.want || (err == nil) != (tc.want != "") || err != nil && !errors.Is(err, auth.ErrClaims) {
					t.Errorf("%s: got %q, %v; want %q", tc.claims, id.Role, err, tc.want)
				}
			}
		})
	}
}

func TestNewRoles_Err(t *testing.T) {
	t.Parallel()
	for _, claim := range []string{"", ".", "a..b", ".a", "a.", "sub", "aud.x", "exp", "iss", strings.Repeat("a.", 8) + "a"} {
		if _, err := auth.NewRoles(claim, nil); err == nil {
			t.Errorf("claim %q: no error", claim)
		}
	}
	for _, mapping := range []string{"", "admin", "king=x", "Admin=x", "admin=", "admin= x", "admin=a,b", "admin=*", "service=*", "=x"} {
		if _, err := auth.NewRoles("role", []string{mapping}); err == nil {
			t.Errorf("mapping %q: no error", mapping)
		}
	}
	if _, err := auth.NewRoles("role", []string{"admin=x", "buyer=x"}); err == nil {
		t.Error("one value for two roles: no error")
	}
}

func TestVerifier_Verify_issuerAndAudience(t *testing.T) {
	t.Parallel()
	const ours = "https://id.example/realms/shop"
	terms := auth.Terms{Issuer: ours, Audience: "shop-api"}
	for name, tc := range map[string]struct {
		change map[string]any
		want   error
	}{
		"good":                      {map[string]any{"iss": ours, "aud": "shop-api"}, nil},
		"audiences":                 {map[string]any{"iss": ours, "aud": []string{"account", "shop-api"}}, nil},
		"no issuer":                 {map[string]any{"aud": "shop-api"}, auth.ErrIssuer},
		"another issuer":            {map[string]any{"iss": "https://id.example/realms/other", "aud": "shop-api"}, auth.ErrIssuer},
		"issuer with a slash":       {map[string]any{"iss": ours + "/", "aud": "shop-api"}, auth.ErrIssuer},
		"issuer in capitals":        {map[string]any{"iss": strings.ToUpper(ours), "aud": "shop-api"}, auth.ErrIssuer},
		"issuer a list":             {map[string]any{"iss": []string{ours}, "aud": "shop-api"}, auth.ErrIssuer},
		"the default audience":      {map[string]any{"iss": ours, "aud": "flashsale"}, auth.ErrAudience},
		"part of the audience":      {map[string]any{"iss": ours, "aud": "shop-api-2"}, auth.ErrAudience},
		"expired and of another":    {map[string]any{"aud": "x", "exp": 1}, auth.ErrExpired},
		"another issuer and claims": {map[string]any{"iss": "x", "aud": "shop-api", "sub": nil}, auth.ErrClaims},
	} {
		v := newVerifier(t, auth.Config{Secret: secret, Terms: terms})
		token := hs256(goodHeader, goodClaims(t, tc.change))
		for range 2 {
			if _, err := v.Verify(token); !errors.Is(err, tc.want) {
				t.Errorf("%s: got %v, want %v", name, err, tc.want)
			}
		}
	}
	// Without a configured issuer, any issuer in any form is accepted.
	v := newVerifier(t, auth.Config{Secret: secret})
	if _, err := v.Verify(hs256(goodHeader, goodClaims(t, map[string]any{"iss": 1}))); err != nil {
		t.Errorf("iss is not read by default: %v", err)
	}
}

func TestVerifier_Verify_subjectClaim(t *testing.T) {
	t.Parallel()
	const claim = "https://shop.example/user"
	v := newVerifier(t, auth.Config{Secret: secret, Terms: auth.Terms{SubjectClaim: claim}})
	id, err := v.Verify(hs256(goodHeader, goodClaims(t, map[string]any{"sub": "auth0|123", claim: "123"})))
	if err != nil || id.Subject != "123" {
		t.Errorf("got %+v, %v", id, err)
	}
	if _, err := v.Verify(hs256(goodHeader, goodClaims(t, nil))); !errors.Is(err, auth.ErrClaims) {
		t.Errorf("only sub: %v", err)
	}
	for name, want := range map[string]bool{"sub": true, claim: true, "": false, "aud": false, "exp": false} {
		if auth.ValidSubjectClaim(name) != want {
			t.Errorf("ValidSubjectClaim(%q) is not %v", name, want)
		}
	}
}

// A token signed under some terms is accepted under them.
func TestTerms_Sign(t *testing.T) {
	t.Parallel()
	shop := []string{"admin=shop-admins", "buyer=*", "service=psp"}
	for name, terms := range map[string]auth.Terms{
		"default": {},
		"all": {
			Issuer: "https://id.example", Audience: "shop-api", SubjectClaim: "uid",
			Roles: newRoles(t, "realm_access.roles", shop...),
		},
		"a claim without mappings": {Roles: newRoles(t, "https://shop.example/roles")},
	} {
		v := newVerifier(t, auth.Config{Secret: secret, Terms: terms})
		for _, role := range []auth.Role{auth.RoleBuyer, auth.RoleAdmin, auth.RoleService} {
			token, err := terms.Sign(secret, "alice", role, time.Hour, now)
			if err != nil {
				t.Errorf("%s, %s: %v", name, role, err)
				continue
			}
			if id, err := v.Verify(token); err != nil || id.Role != role || id.Subject != "alice" {
				t.Errorf("%s, %s: got %+v, %v", name, role, id, err)
			}
		}
	}
	only := auth.Terms{Roles: newRoles(t, "role", "buyer=*")}
	if _, err := only.Sign(secret, "root", auth.RoleAdmin, time.Hour, now); !errors.Is(err, auth.ErrUnmapped) {
		t.Errorf("an admin where no value makes one: %v", err)
	}
}
