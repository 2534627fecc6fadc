package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"flashsale/handler/auth"
)

// block returns the first code block of a language in a section of docs/identity.md.
func block(t *testing.T, section, language string) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/identity.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "\n## "+section+"\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	_, rest, _ = strings.Cut(rest, "\n```"+language+"\n")
	text, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatalf("docs/identity.md has no %s in the section %s", language, section)
	}
	return text
}

// TestDocs_Identity loads the settings of the worked examples, and verifies their tokens.
func TestDocs_Identity(t *testing.T) {
	t.Parallel()
	secret := []byte("the examples are signed with a secret")
	for section, want := range map[string]auth.Identity{
		"Keycloak": {Subject: "6f9b4c1e-3f0a-4f0e-9a52-2d8f5f4f6a11", Role: auth.RoleBuyer},
		"Auth0":    {Subject: "auth0:507f1f77bcf86cd799439011", Role: auth.RoleAdmin},
	} {
		path := filepath.Join(t.TempDir(), "shop.yaml")
		if err := os.WriteFile(path, []byte(block(t, section, "yaml")), 0o600); err != nil {
			t.Fatal(err)
		}
		s, _, err := loadWith("--config", path)
		if err != nil {
			t.Errorf("the settings of %s: %v", section, err)
			continue
		}
		terms, err := s.Terms()
		if err != nil {
			t.Fatal(err)
		}
		var claims jwt.MapClaims
		if err := json.Unmarshal([]byte(block(t, section, "json")), &claims); err != nil {
			t.Fatalf("the token of %s: %v", section, err)
		}
		issued, err := claims.GetIssuedAt()
		if err != nil {
			t.Fatal(err)
		}
		token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(secret)
		if err != nil {
			t.Fatal(err)
		}
		v, err := auth.NewVerifier(auth.Config{Secret: secret, Terms: terms, Now: func() time.Time { return issued.Time }})
		if err != nil {
			t.Fatal(err)
		}
		id, err := v.Verify(token)
		if want.Expires = id.Expires; err != nil || id != want {
			t.Errorf("the token of %s: %+v, %v; want %+v", section, id, err, want)
		}
	}
}
