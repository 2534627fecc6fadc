package client

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

// The generated file is the one that `make generate` made from the present document and its
// configuration. This needs no network, unlike `make generate-check`, which generates it again.
func TestGenerated(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("generated.sha256")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 4 {
		t.Errorf("generated.sha256 lists %d files", len(lines))
	}
	for _, line := range lines {
		want, name, _ := strings.Cut(line, "  ")
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		if got := hex.EncodeToString(sum[:]); got != want {
			t.Errorf("%s has changed since client.gen.go was generated; run make generate", name)
		}
	}
}
