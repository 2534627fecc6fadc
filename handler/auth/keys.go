package auth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/time/rate"
)

// errNoKeys means that a key set has no key that can verify a token.
var errNoKeys = errors.New("auth: the key set holds no usable public key")

// minRSABits is the minimum size of an RSA key.
const minRSABits = 2048

// Keys is a JWK set that is refreshed in the background.
type Keys struct {
	ctx     context.Context // ends the refreshing and the look-ups
	storage atomic.Pointer[jwkset.Storage]
}

// KeysConfig configures the source of a key set and how often it is refreshed.
type KeysConfig struct {
	// Source is an http or https URL, or the path of a file.
	Source string
	// Refresh is the interval between readings. Default 5 minutes for a URL, 15 seconds for a
	// file (which is only read again after a change).
	Refresh time.Duration
	// Client fetches a URL. Default: one with a timeout of 5 seconds.
	Client *http.Client
	// OnError is called when a refresh fails; the previous keys stay in use. Default: failures
	// are ignored.
	OnError func(error)
}

// OpenKeys reads a key set, and refreshes it until ctx ends. It fails if the set cannot be read
// or has no usable key.
func OpenKeys(ctx context.Context, c KeysConfig) (*Keys, error) {
	if c.OnError == nil {
		c.OnError = func(error) {}
	}
	k := &Keys{ctx: ctx}
	if strings.HasPrefix(c.Source, "https://") || strings.HasPrefix(c.Source, "http://") {
		if err := k.openURL(c); err != nil {
			return nil, err
		}
	} else if err := k.openFile(c); err != nil {
		return nil, err
	}
	if err := k.usable(); err != nil {
		return nil, fmt.Errorf("auth: key set %s: %w", c.Source, err)
	}
	return k, nil
}

func (k *Keys) openURL(c KeysConfig) error {
	if c.Refresh <= 0 {
		c.Refresh = 5 * time.Minute
	}
	if c.Client == nil {
		c.Client = &http.Client{Timeout: 5 * time.Second}
	}
	startWithout := false
	set, err := keyfunc.NewDefaultOverrideCtx(k.ctx, []string{c.Source}, keyfunc.Override{
		Client:                    c.Client,
		HTTPTimeout:               5 * time.Second,
		NoErrorReturnFirstHTTPReq: &startWithout,
		RefreshInterval:           c.Refresh,
		RefreshErrorHandlerFunc: func(source string) func(context.Context, error) {
			return func(_ context.Context, err error) {
				c.OnError(fmt.Errorf("auth: refresh key set %s: %w", source, err))
			}
		},
		// An unknown key id may belong to a new key: refresh, but at most once a minute. No
		// request waits for the next permitted refresh.
		RefreshUnknownKID: rate.NewLimiter(rate.Every(time.Minute), 1),
		RateLimitWaitMax:  2 * time.Second,
	})
	var failed *url.Error
	if errors.As(err, &failed) {
		return fmt.Errorf("auth: open key set %s: %w", c.Source, failed.Err) // not the lines that the libraries add
	}
	if err != nil {
		return fmt.Errorf("auth: open key set %s: %w", c.Source, err)
	}
	storage := set.Storage()
	k.storage.Store(&storage)
	return nil
}

func (k *Keys) openFile(c KeysConfig) error {
	if c.Refresh <= 0 {
		c.Refresh = 15 * time.Second
	}
	storage, changed, err := readKeyFile(c.Source)
	if err != nil {
		return err
	}
	k.storage.Store(&storage)
	go k.watchFile(c, changed)
	return nil
}

// watchFile reads the file after each change. A broken or missing file leaves the keys
// unchanged.
func (k *Keys) watchFile(c KeysConfig, known time.Time) {
	tick := time.NewTicker(c.Refresh)
	defer tick.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-tick.C:
		}
		info, err := os.Stat(c.Source)
		if err == nil && info.ModTime().Equal(known) {
			continue
		}
		storage, changed, err := readKeyFile(c.Source)
		if err != nil {
			c.OnError(err)
			continue
		}
		known = changed
		k.storage.Store(&storage)
	}
}

func readKeyFile(path string) (jwkset.Storage, time.Time, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("auth: open key set: %w", err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("auth: open key set: %w", err)
	}
	set, err := keyfunc.NewJWKSetJSON(json.RawMessage(raw))
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("auth: key set %s: %w", path, err)
	}
	return set.Storage(), info.ModTime(), nil
}

// usable reports whether at least one key can verify a token.
func (k *Keys) usable() error {
	keys, err := (*k.storage.Load()).KeyReadAll(k.ctx)
	if err != nil {
		return fmt.Errorf("auth: read key set: %w", err)
	}
	for _, one := range keys {
		if _, method := publicKey(one); method != nil {
			return nil
		}
	}
	return errNoKeys
}

// shares reports whether both sets contain a common key that can verify a token. A set that
// cannot be read shares none, because it does not verify any token either.
func (k *Keys) shares(other *Keys) bool {
	ours, err := (*k.storage.Load()).KeyReadAll(k.ctx)
	if err != nil {
		return false
	}
	theirs, err := (*other.storage.Load()).KeyReadAll(other.ctx)
	if err != nil {
		return false
	}
	for _, one := range ours {
		public, method := publicKey(one)
		if method == nil {
			continue
		}
		own, ok := public.(interface{ Equal(crypto.PublicKey) bool })
		for _, another := range theirs {
			if key, method := publicKey(another); ok && method != nil && own.Equal(key) {
				return true
			}
		}
	}
	return false
}

// verify takes the algorithm from the key that the token names. A token without a key id is
// only valid if the set has a single key.
func (k *Keys) verify(h header, signed string, signature []byte) error {
	switch h.alg {
	case "RS256", "ES256", "ES384", "ES512", "EdDSA":
	default:
		return ErrAlgorithm
	}
	one, err := k.find(h)
	if err != nil {
		return err
	}
	public, method := publicKey(one)
	if method == nil {
		return ErrKey
	}
	if method.Alg() != h.alg {
		return ErrAlgorithm
	}
	if err := method.Verify(signed, signature, public); err != nil {
		return ErrSignature
	}
	return nil
}

func (k *Keys) find(h header) (jwkset.JWK, error) {
	storage := *k.storage.Load()
	if h.hasKID {
		one, err := storage.KeyRead(k.ctx, h.kid)
		if err != nil {
			return jwkset.JWK{}, ErrKey
		}
		return one, nil
	}
	all, err := storage.KeyReadAll(k.ctx)
	if err != nil || len(all) != 1 {
		return jwkset.JWK{}, ErrKey
	}
	return all[0], nil
}

// publicKey returns the verification key and its only algorithm; nil if the key is not for
// signatures, too weak, or a shared secret.
func publicKey(k jwkset.JWK) (crypto.PublicKey, jwt.SigningMethod) {
	m := k.Marshal()
	if m.USE != "" && m.USE != jwkset.UseSig {
		return nil, nil
	}
	var public any = k.Key()
	if private, ok := public.(crypto.Signer); ok {
		public = private.Public()
	}
	var method jwt.SigningMethod
	switch key := public.(type) {
	case *rsa.PublicKey:
		if key.N.BitLen() >= minRSABits {
			method = jwt.SigningMethodRS256
		}
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256():
			method = jwt.SigningMethodES256
		case elliptic.P384():
			method = jwt.SigningMethodES384
		case elliptic.P521():
			method = jwt.SigningMethodES512
		}
	case ed25519.PublicKey:
		method = jwt.SigningMethodEdDSA
	}
	if method == nil || m.ALG != "" && m.ALG.String() != method.Alg() {
		return nil, nil
	}
	return public, method
}
