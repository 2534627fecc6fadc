package pages

import (
	"bytes"
	"compress/gzip"
	"embed"
	"path"
	"strings"
	"testing"

	"flashsale/web"
)

//go:embed language.go shop.go
var sources embed.FS

// maxWeight bounds what a buyer's browser loads to see the shop, compressed, in bytes.
const maxWeight = 60 << 10

// Given the shop's templates, styles, modules and the texts of the longest language, then together they
// are light enough for a phone.
func TestShop_Weight(t *testing.T) {
	t.Parallel()
	sum, files := 0, 0
	add := func(name string) {
		data, err := web.Files.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		sum += b.Len()
		files++
	}
	for _, folder := range []string{"shop", "assets", "lang"} {
		entries, err := web.Files.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			name := e.Name()
			if folder == "assets" && !strings.HasPrefix(name, "shop") && name != "base.css" && name != "icon.svg" || folder == "lang" && name == "en.json" {
				continue
			}
			add(path.Join(folder, name))
		}
	}
	if t.Logf("%d bytes in %d files", sum, files); sum > maxWeight || files < 14 {
		t.Errorf("%d files have %d bytes compressed, want at most %d", files, sum, maxWeight)
	}
}
