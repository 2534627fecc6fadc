package pages

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"regexp"
	"strings"
	"testing"

	"flashsale/web"
)

// The files of the other project are those that assets/vendor/uplot/VENDOR lists.
func TestVendor_Hashes(t *testing.T) {
	t.Parallel()
	folder, err := fs.Sub(web.Files, "assets/vendor/uplot")
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) []byte {
		data, err := fs.ReadFile(folder, name)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	text := read("VENDOR")
	listed := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^([0-9a-f]{64})  (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		listed[m[2]] = m[1]
	}
	check := func(name string, data []byte) {
		sum := sha256.Sum256(data)
		if got := hex.EncodeToString(sum[:]); listed[name] != got {
			t.Errorf("%s has the hash %s; VENDOR says %q", name, got, listed[name])
		}
		delete(listed, name)
	}
	entries, err := fs.ReadDir(folder, ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Name() == "VENDOR" {
			continue
		}
		data := read(entry.Name())
		check(entry.Name(), data)
		if name, packed := strings.CutSuffix(entry.Name(), ".gz"); packed {
			r, err := gzip.NewReader(bytes.NewReader(data))
			if err != nil {
				t.Fatal(err)
			}
			if data, err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
			check(name, data) // as it is in the package
		}
	}
	for name := range listed {
		t.Errorf("VENDOR lists %s, which does not exist", name)
	}
}
