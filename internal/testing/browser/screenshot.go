package browser

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"slices"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// Screenshot writes what the window shows as a PNG file of at most 256 colours, which makes the file a
// third of the size.
func (p *Page) Screenshot(path string) {
	p.t.Helper()
	ctx, cancel := p.bounded()
	defer cancel()
	if err := capture(ctx, path, true); err != nil {
		p.fail("screenshot: %v", err)
	}
}

func capture(ctx context.Context, path string, small bool) error {
	res, err := chromedp.Call(ctx, page.CaptureScreenshot, page.CaptureScreenshotParams{})
	if err != nil {
		return err
	}
	if !small {
		return os.WriteFile(path, res.Data, 0o644)
	}
	picture, err := png.Decode(bytes.NewReader(res.Data))
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	return errors.Join(encoder.Encode(f, reduce(picture)), f.Close())
}

// maxColours is the size of a palette.
const maxColours = 256

// reduce returns the picture with its most frequent colours; every other colour becomes the nearest of
// them. The pages have few colours, and those between them only smooth edges.
func reduce(picture image.Image) *image.Paletted {
	bounds := picture.Bounds()
	at := func(x, y int) color.RGBA {
		return color.RGBAModel.Convert(picture.At(x, y)).(color.RGBA) // the model returns nothing else
	}
	count := map[color.RGBA]int{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			count[at(x, y)]++
		}
	}
	frequent := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G), cmp.Compare(a.B, b.B))
	})
	palette := make(color.Palette, 0, maxColours)
	for _, c := range frequent[:min(len(frequent), maxColours)] {
		palette = append(palette, c)
	}
	index := map[color.RGBA]uint8{}
	for c := range count {
		index[c] = uint8(palette.Index(c))
	}
	reduced := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			reduced.SetColorIndex(x, y, index[at(x, y)])
		}
	}
	return reduced
}
