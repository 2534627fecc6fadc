package pages

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"

	"flashsale/handler/static"
	"flashsale/web"
)

// AssetPrefix is the path below which the pages' styles, modules and images are served, each
// version of all of them in a folder of its own: modules import each other by relative paths.
const AssetPrefix = "/assets/"

var assetTypes = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// assetSet is every file of web/assets by its name; names are unique across subfolders.
type assetSet struct {
	files map[string]*static.File
	build string // identifies the content of all files
}

var assets = sync.OnceValue(func() assetSet {
	set := assetSet{files: make(map[string]*static.File)}
	sum := sha256.New()
	err := fs.WalkDir(web.Files, "assets", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := web.Files.ReadFile(name)
		if err != nil {
			return err
		}
		base, packed := strings.CutSuffix(path.Base(name), ".gz")
		kind, known := assetTypes[path.Ext(base)]
		if !known {
			return nil // licences and records of versions
		}
		form := static.New
		if packed {
			form = static.NewPacked
		}
		if set.files[base] != nil {
			panic("pages: two assets have the name " + base)
		}
		f := form(kind, data)
		set.files[base] = f
		_, err = sum.Write([]byte(base + f.Hash()))
		return err
	})
	if err != nil {
		panic("pages: " + err.Error()) // the files are part of the program
	}
	set.build = hex.EncodeToString(sum.Sum(nil)[:6])
	return set
})

// Asset returns the URL of an asset.
func Asset(name string) string {
	if assets().files[name] == nil {
		panic("pages: no asset has the name " + name)
	}
	return AssetPrefix + assets().build + "/" + name
}

// IsBuild reports whether the text can identify a version of the assets.
func IsBuild(build string) bool {
	return len(build) == 12 && strings.Trim(build, "0123456789abcdef") == ""
}

// HasFile reports whether an asset has the name.
func HasFile(name string) bool { return assets().files[name] != nil }

// ServeAsset answers a request for an asset that exists. Clients may cache it permanently, unless their
// page has another version of the assets: then it comes from another process during an upgrade, and
// gets the file of this one. An error means that the client has disconnected.
func ServeAsset(w http.ResponseWriter, r *http.Request, build, name string) error {
	caching := "no-store"
	if build == assets().build {
		caching = "public, max-age=31536000, immutable"
	}
	w.Header()["Cache-Control"] = []string{caching}
	return assets().files[name].Serve(w, r)
}
