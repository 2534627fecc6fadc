package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"hash"
	"sync"

	"github.com/golang-jwt/jwt/v5"
)

// secretKey verifies HS256.
type secretKey struct {
	// Keyed hashes are reused: a keyed hash can be reset to its initial state, which halves the
	// work and allocates nothing. The result is that of jwt.SigningMethodHS256.Verify.
	hashes sync.Pool
}

type keyedHash struct {
	hash.Hash
	sum, in []byte
}

func newSecretKey(secret []byte) *secretKey {
	own := append([]byte(nil), secret...)
	return &secretKey{hashes: sync.Pool{New: func() any {
		return &keyedHash{Hash: hmac.New(sha256.New, own), sum: make([]byte, 0, sha256.Size)}
	}}}
}

// verify requires HS256. A secret has no key id, so a token with a key id belongs to another
// key.
func (k *secretKey) verify(h header, signed string, signature []byte) error {
	if h.alg != jwt.SigningMethodHS256.Alg() {
		return ErrAlgorithm
	}
	if h.hasKID {
		return ErrKey
	}
	keyed := k.hashes.Get().(*keyedHash)
	defer k.hashes.Put(keyed)
	keyed.Reset()
	keyed.in = append(keyed.in[:0], signed...)
	if _, err := keyed.Write(keyed.in); err != nil {
		return ErrSignature
	}
	keyed.sum = keyed.Sum(keyed.sum[:0])
	if !hmac.Equal(keyed.sum, signature) {
		return ErrSignature
	}
	return nil
}
