package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
)

// variables checks the names of the environment variables.
func (d *doctor) variables() {
	for _, name := range d.settings.UnknownVariables {
		d.warn("settings", "the environment variable "+name+" is not a setting", "correct its name (see flashsale --help), or remove it")
	}
}

// keys checks the keys that verify tokens.
func (d *doctor) keys(ctx context.Context) {
	s := d.settings
	if s.JWTSecret == "" && s.JWKS == "" && !s.Identity.Separate() {
		d.devKey()
		return
	}
	err := s.NeedKey("api")
	if err == nil {
		_, err = s.OpenVerifier(ctx, nil, func(error) {})
	}
	if err != nil {
		d.failed("keys", err)
		return
	}
	if s.JWTSecret != "" {
		d.ok("keys", "a secret of %d bytes verifies the tokens", len(s.JWTSecret))
	} else {
		d.ok("keys", "the key set %s can be read", config.RedactURL(s.JWKS))
	}
	switch i := &s.Identity; {
	case i.AdminSecret != "":
		d.ok("keys", "a secret of %d bytes verifies the tokens of admins", len(i.AdminSecret))
	case i.AdminJWKS != "":
		d.ok("keys", "the key set %s of admins can be read", config.RedactURL(i.AdminJWKS))
	case i.Separate():
		d.ok("keys", "admins' tokens need a separate issuer or audience")
	default:
		d.found = append(d.found, finding{levelNote, "keys", "buyers and admins share a key: the signer of buyers' tokens can also sign admins' tokens",
			"give admins a separate key (FLASHSALE_ADMIN_JWT_SECRET or FLASHSALE_ADMIN_JWKS), see docs/identity.md"})
	}
}

// devKey checks the key of development mode without creating it.
func (d *doctor) devKey() {
	path := filepath.Join(d.settings.DataDir, config.DevKeyFile)
	const remedy = "set FLASHSALE_JWT_SECRET or FLASHSALE_JWKS before real money is taken"
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.warn("keys", "no key is set: flashsale serve would run in development mode and create one", remedy)
	case err != nil:
		d.failed("keys", err)
	case info.Mode().Perm()&0o077 != 0:
		d.fix("keys", fmt.Sprintf("development key %s can be read by others (%v)", path, info.Mode().Perm()), "chmod 600 "+path)
	default:
		d.warn("keys", "development mode: any client that can reach /dev/tokens can get a token for any user and role", remedy)
	}
}

// process checks the limits of a process.
func (d *doctor) process() {
	n, known := backend.FileLimit()
	switch {
	case !known:
	case n < minFiles:
		d.warn("system", fmt.Sprintf("a process can open %d files, and each connection needs one", n),
			"raise the limit (ulimit -n, LimitNOFILE) above the connections you expect")
	case uint64(d.settings.MaxStreams) > backend.StreamFiles(n):
		d.warn("system", fmt.Sprintf("max-streams is %d, but a process can open %d files, and event streams use at most half of them", d.settings.MaxStreams, n),
			"raise the limit (ulimit -n, LimitNOFILE), or lower max-streams")
	default:
		d.ok("system", "a process can open %d files", n)
	}
}
