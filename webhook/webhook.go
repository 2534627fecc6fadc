// Package webhook sends messages to the shop's own servers. It signs them according to the
// Standard Webhooks scheme and checks the addresses: it only sends to public networks unless
// the configuration allows others. Its callers decide about the content, the time and the
// retries of messages.
package webhook

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// secretPrefix is the prefix of every secret, so that a leaked one is recognized as such.
const secretPrefix = "whsec_"

// secretBytes is the length of a secret; the scheme asks for 24 to 64.
const secretBytes = 32

// NewSecret returns a new secret in the receiver's form: the prefix, and random bytes in
// base64.
func NewSecret() string {
	var b [secretBytes]byte
	// crypto/rand.Read never returns an error; it ends the program instead.
	_, _ = rand.Read(b[:])
	return secretPrefix + base64.StdEncoding.EncodeToString(b[:])
}

// Message is one message to one receiver.
type Message struct {
	// ID identifies the message; it is the same in every retry.
	ID  string
	URL string
	// Secrets sign the message, each with its own signature, because after a rotation the
	// receiver may have either. At least one.
	Secrets []string
	Body    []byte
}

// signatures returns the header that proves the sender and the time of a message.
func signatures(m *Message, at time.Time) (string, error) {
	all := make([]string, len(m.Secrets))
	for i, secret := range m.Secrets {
		signer, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			return "", fmt.Errorf("webhook: secret %d of %d is not base64", i+1, len(m.Secrets)) // the decoder's text would contain part of the secret
		}
		if all[i], err = signer.Sign(m.ID, at, m.Body); err != nil {
			return "", fmt.Errorf("webhook: sign %s: %w", m.ID, err)
		}
	}
	return strings.Join(all, " "), nil
}
