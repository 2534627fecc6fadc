//go:build unix

package pages_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"flashsale/internal/testing/browser"
)

// screenshots is the folder that `make screenshots` writes the pictures of the documentation to.
var screenshots = flag.String("screenshots", "", "write the screenshots of the documentation to this folder, from the folder of this package")

// maxPicture bounds the size of a picture in bytes, because every clone of the repository has it.
const maxPicture = 150_000

// pictures are the screenshots by the names of their files.
var pictures = map[string]struct {
	options browser.Options
	// show opens what the picture shows.
	show func(t *testing.T, o browser.Options) *browser.Page
}{
	"api-reference.png":      {browser.Options{Width: 1100, Height: 720}, pictureRoute},
	"shop-item.png":          {browser.Options{Width: 1100, Height: 700}, pictureItem},
	"shop-item-zh.png":       {browser.Options{Width: 1100, Height: 640, Lang: "zh-CN", Timezone: "Asia/Shanghai"}, pictureItem},
	"loadtest-report.png":    {browser.Options{Width: 1000, Height: 900}, pictureReport},
	"dashboard-overview.png": {browser.Options{Width: 1280, Height: 900}, pictureOverview},
}

// pictureRoute shows the reference of the route that buys.
func pictureRoute(t *testing.T, o browser.Options) *browser.Page {
	p := openDocs(t, o, "")
	const route = "#operations-Orders-placeOrder"
	p.Click(route + " .opblock-summary-control")
	p.WaitVisible(route + " .parameters")
	p.Eval("document.querySelector('#operations-tag-Orders').scrollIntoView()", nil)
	return p
}

func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("skipped: `make screenshots` writes the pictures of the documentation")
	}
	if err := os.MkdirAll(*screenshots, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, picture := range pictures {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(*screenshots, name)
			picture.show(t, picture.options).Screenshot(path)
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.Size() > maxPicture {
				t.Errorf("%s has %d bytes, more than %d: choose a smaller window", name, info.Size(), maxPicture)
			}
		})
	}
}
