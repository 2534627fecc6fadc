package auth_test

import (
	"testing"

	"flashsale/handler/auth"
)

// BenchmarkHotPath_Verify verifies tokens that are in the cache, and tokens that are not.
func BenchmarkHotPath_Verify(b *testing.B) {
	tokens := []string{
		hs256(goodHeader, goodClaims(b, map[string]any{"sub": "buyer-1"})),
		hs256(goodHeader, goodClaims(b, map[string]any{"sub": "buyer-2"})),
	}
	verify := func(b *testing.B, slots int, tokens []string) {
		v := newVerifier(b, auth.Config{Secret: secret, CacheSlots: slots})
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, err := v.Verify(tokens[i%len(tokens)]); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("cached", func(b *testing.B) { verify(b, 1, tokens[:1]) })
	// The tokens replace each other in the only slot.
	b.Run("first", func(b *testing.B) { verify(b, 1, tokens) })
}
