package placeholder

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ids are ids of every length and with every character.
func ids() []string {
	all := []string{"a", "9", "demo", "a-", "a--b", strings.Repeat("z", 64), strings.Repeat("9-", 32)}
	for i := range 2000 {
		all = append(all, fmt.Sprintf("item-%d", i))
	}
	return all
}

// TestSVG_Stays: clients and proxies keep pictures, so an id keeps its picture in every version
// of the program and of Go. testdata/demo.svg is the picture of the id demo.
func TestSVG_Stays(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("testdata/demo.svg")
	if err != nil {
		t.Fatal(err)
	}
	if got := SVG("demo"); !bytes.Equal(got, want) {
		t.Errorf("the picture is\n%s\nwant\n%s", got, want)
	}
}

// allowed are the elements and attributes of a picture. None of them runs, styles or fetches
// anything.
var allowed = map[string][]string{
	"svg":    {"xmlns", "viewBox", "width", "height"},
	"rect":   {"width", "height", "fill"},
	"circle": {"cx", "cy", "r", "fill", "fill-opacity", "stroke", "stroke-width"},
	"path":   {"d", "fill", "fill-opacity", "stroke", "stroke-width", "stroke-linecap", "stroke-dasharray"},
	"text":   {"x", "y", "fill", "font-family", "font-size", "font-weight", "text-anchor"},
}

func TestSVG_IsSmallAndHarmless(t *testing.T) {
	t.Parallel()
	hostile := []string{"", "--", `"><script>alert(1)</script>`, "&amp;", "ä/../\x00", strings.Repeat("<", 5000)}
	for _, id := range append(ids(), hostile...) {
		picture := SVG(id)
		if len(picture) >= 2048 {
			t.Errorf("%q: %d bytes", id, len(picture))
		}
		if n := bytes.Count(picture, []byte("//")); n != 1 { // the namespace
			t.Errorf("%q: %d addresses", id, n)
		}
		checkElements(t, id, picture)
	}
}

// checkElements reads a picture as XML.
func checkElements(t *testing.T, id string, picture []byte) {
	t.Helper()
	r := xml.NewDecoder(bytes.NewReader(picture))
	for {
		token, err := r.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%q: %v in\n%s", id, err, picture)
		}
		switch token := token.(type) {
		case xml.StartElement:
			attributes, ok := allowed[token.Name.Local]
			if !ok || token.Name.Space != "http://www.w3.org/2000/svg" {
				t.Errorf("%q: element %v", id, token.Name)
			}
			for _, a := range token.Attr {
				if !slices.Contains(attributes, a.Name.Local) || strings.ContainsAny(a.Value, "(&%") {
					t.Errorf("%q: %s has %s=%q", id, token.Name.Local, a.Name.Local, a.Value)
				}
			}
		case xml.CharData:
			if text := strings.TrimSpace(string(token)); !regexp.MustCompile(`^[A-Z0-9]{0,2}$`).MatchString(text) {
				t.Errorf("%q: text %q", id, text)
			}
		case xml.EndElement:
		default:
			t.Errorf("%q: %T", id, token)
		}
	}
}

// TestSVG_Varies: many ids have different pictures, and all palettes occur about equally often.
func TestSVG_Varies(t *testing.T) {
	t.Parallel()
	pictures, grounds := map[string]bool{}, map[string]int{}
	for _, id := range ids() {
		picture := string(SVG(id))
		pictures[picture] = true
		ground := regexp.MustCompile(`<rect [^>]*fill="(#[0-9a-f]{6})"`).FindStringSubmatch(picture)
		if ground == nil {
			t.Fatalf("%q has no ground:\n%s", id, picture)
		}
		grounds[ground[1]]++
	}
	if len(pictures) < len(ids())*99/100 {
		t.Errorf("%d ids have %d pictures", len(ids()), len(pictures))
	}
	for _, p := range palettes {
		if n, equal := grounds[p.ground], len(ids())/len(palettes); n < equal/2 || n > equal*2 {
			t.Errorf("%d pictures have the ground %s, want about %d", n, p.ground, equal)
		}
	}
}

func TestInitials(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"demo": "DE", "drop-1": "D1", "a": "A", "7": "7", "a-b-c": "AB", "a--b": "AB", "ab-": "AB", "10k": "10", "": "", "-": "", "Ä<b>": "B",
	} {
		if got := initials(id); got != want {
			t.Errorf("initials(%q) = %q, want %q", id, got, want)
		}
	}
}

// TestPalettes_Contrast computes the contrasts of WCAG 2: at least 4.5 for text, and 3 for graphics.
func TestPalettes_Contrast(t *testing.T) {
	t.Parallel()
	for _, p := range palettes {
		for _, pair := range []struct {
			what, a, b string
			least      float64
		}{
			{"letters", "#ffffff", p.ground, 4.5},
			{"shapes", p.shape, p.ground, 3},
			{"accents", p.accent, p.ground, 3},
			{"a white page", "#ffffff", p.ground, 3},
			{"a dark page", "#121212", p.ground, 3},
		} {
			if got := contrast(t, pair.a, pair.b); got < pair.least {
				t.Errorf("ground %s: the contrast to %s %s is %.2f, want %.1f", p.ground, pair.what, pair.a, got, pair.least)
			}
		}
	}
}

// contrast is the contrast ratio of two colours.
func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	light, dark := luminance(t, a), luminance(t, b)
	if light < dark {
		light, dark = dark, light
	}
	return (light + 0.05) / (dark + 0.05)
}

// luminance is the relative luminance of a colour such as #12ab9f.
func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(colour[1+2*i:3+2*i], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c := float64(n) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}

func BenchmarkSVG(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		SVG("drop-1")
	}
}
