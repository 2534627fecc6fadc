// Package placeholder draws the picture of an item that has no image: a pattern of simple shapes
// in the colours of a palette, with the initials of the item's id. The id determines the picture,
// so it can be cached, and every process draws the same.
//
// A picture is an SVG without scripts, styles and references, so a page whose content security
// policy only allows images of its own address can show it.
package placeholder

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
)

// The size of a picture, in the units of its coordinates.
const (
	width  = 640
	height = 480
)

// palette are the colours of a picture. White letters are readable on the ground, and so is the
// pattern; the ground itself stands out from a white page and from a nearly black one. The tests
// compute these contrasts.
type palette struct{ ground, shape, accent string }

var palettes = [...]palette{
	{"#2a6db5", "#a9d3f5", "#ffc857"}, // blue
	{"#117a72", "#9fe3d6", "#ffbd8a"}, // teal
	{"#3c7d3f", "#bfe3a8", "#ffd76b"}, // green
	{"#7a52c7", "#d3c1f7", "#ffb0cb"}, // violet
	{"#a8437f", "#f6c3dc", "#ffd38a"}, // plum
	{"#bd4040", "#f9c2b4", "#ffe08a"}, // red
	{"#a65a12", "#f7d8a4", "#a9e0d8"}, // copper
	{"#54708c", "#c6d6e6", "#ffbf80"}, // slate
	{"#5561c9", "#c3cbfa", "#8fe3d0"}, // indigo
}

// SVG returns the picture of an item, less than 2 KB. Only lower-case letters and digits of the
// id become part of it.
func SVG(id string) []byte {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // a hash's Write never fails
	d := dice{rand.NewPCG(h.Sum64(), 0)}
	p := palettes[d.below(len(palettes))]
	if d.below(2) == 1 {
		p.shape, p.accent = p.accent, p.shape
	}
	b := fmt.Appendf(make([]byte, 0, 2048), `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d">`+
		`<rect width="%d" height="%d" fill="%s"/>`, width, height, width, height, width, height, p.ground)
	b = patterns[d.below(len(patterns))](b, &p, &d)
	if letters := initials(id); letters != "" {
		const radius, size = 84, 76
		// A capital letter is about 0.7 of the font's size high.
		b = fmt.Appendf(b, `<circle cx="%d" cy="%d" r="%d" fill="%s" stroke="#fff" stroke-width="6"/><text x="%d" y="%d" fill="#fff" font-family="system-ui,sans-serif" `+
			`font-size="%d" font-weight="700" text-anchor="middle">%s</text>`,
			width/2, height/2, radius, p.ground, width/2, height/2+size*36/100, size, letters)
	}
	return append(b, "</svg>\n"...)
}

// initials returns the first letters or digits of the id's first two words, or of its only word
// the first two, in upper case.
func initials(id string) string {
	var words, all []byte
	start := true
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			start = true
			continue
		}
		if c >= 'a' {
			c -= 'a' - 'A'
		}
		all = append(all, c)
		if start {
			words = append(words, c)
		}
		start = false
	}
	if len(words) < 2 {
		words = all
	}
	return string(words[:min(len(words), 2)])
}

// dice chooses the details of a picture. The sequence depends on the seed only, in every version
// of Go: the algorithm of PCG is specified.
type dice struct{ source *rand.PCG }

// below returns a number from 0 to n-1.
func (d *dice) below(n int) int { return int(d.source.Uint64() % uint64(n)) }

// between returns a number from low to high.
func (d *dice) between(low, high int) int { return low + d.below(high-low+1) }
