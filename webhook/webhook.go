// Package webhook speaks to the shop's own servers: it signs messages as the
// Standard Webhooks scheme wants it, checks the addresses they are to go to, and
// sends them without ever reaching into a network that is not public, unless the
// configuration allows it. What is sent, when and how often is decided elsewhere.
package webhook

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// SecretPrefix opens every secret, so that a leaked one is recognised as such.
const SecretPrefix = "whsec_"

// secretBytes is the length of a secret; the scheme asks for 24 to 64.
const secretBytes = 32

// NewSecret makes a secret as the receiver gets it: the prefix, and random bytes
// in base64.
func NewSecret() string {
	var b [secretBytes]byte
	// crypto/rand.Read never returns an error; it ends the program instead.
	_, _ = rand.Read(b[:])
	return SecretPrefix + base64.StdEncoding.EncodeToString(b[:])
}

// Message is one message to one receiver.
type Message struct {
	// ID names what is told; it is the same in every repeat.
	ID  string
	URL string
	// Secrets sign the message, each with a signature of its own: after a
	// rotation the receiver may know either. At least one.
	Secrets []string
	Body    []byte
}

// signatures is the header that proves who sent a body at that time.
func signatures(m *Message, at time.Time) (string, error) {
	all := make([]string, len(m.Secrets))
	for i, secret := range m.Secrets {
		signer, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			return "", fmt.Errorf("webhook: secret %d of %d is no base64", i+1, len(m.Secrets)) // its text stays out of every log
		}
		if all[i], err = signer.Sign(m.ID, at, m.Body); err != nil {
			return "", fmt.Errorf("webhook: sign %s: %w", m.ID, err)
		}
	}
	return strings.Join(all, " "), nil
}
