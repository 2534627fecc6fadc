// Package fnv1a computes the 64-bit FNV-1a hash of strings without an allocation. Its
// results are stored in Redis, so they must never change.
package fnv1a

// Start is the hash of the empty text.
const Start = uint64(14695981039346656037)

// Add returns the hash of the text that h is the hash of, followed by text.
func Add(h uint64, text string) uint64 {
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h
}
