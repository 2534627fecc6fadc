package vendored

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// The folders with files of other projects are as their VENDOR files say.
func TestProblems_Repository(t *testing.T) {
	t.Parallel()
	for name, folder := range map[string]fs.FS{
		"swagger-ui": os.DirFS("../../../handler/apidocs/swagger-ui"),
		"axe":        os.DirFS("../browser/axe"),
		"uplot":      os.DirFS("../../../web/assets/vendor/uplot"),
	} {
		problems, err := Problems(folder)
		if err != nil || len(problems) > 0 {
			t.Errorf("%s: %q, %v", name, problems, err)
		}
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	content := []byte("content")
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	vendor := fmt.Sprintf("package    p\nversion    1.2.3\nintegrity  sha512-%s==\n\n%x  a.js.gz\n%x  a.js\n",
		strings.Repeat("A", 86), sha256.Sum256(packed.Bytes()), sha256.Sum256(content))
	whole := map[string][]byte{"VENDOR": []byte(vendor), "a.js.gz": packed.Bytes()}
	for name, tc := range map[string]struct {
		file    string
		content string
		want    string
	}{
		"unchanged":     {want: ""},
		"unlisted file": {file: "b.js", content: "b", want: "b.js has the hash"},
		"missing file":  {file: "VENDOR", content: vendor + strings.Repeat("0", 64) + "  c.js\n", want: "VENDOR lists c.js, which does not exist"},
		"changed content": {
			file: "VENDOR", content: strings.Replace(vendor, fmt.Sprintf("%x", sha256.Sum256(content)), strings.Repeat("0", 64), 1),
			want: "a.js has the hash",
		},
		"no version":   {file: "VENDOR", content: strings.Replace(vendor, "version", "edition", 1), want: "does not state the version"},
		"no integrity": {file: "VENDOR", content: strings.Replace(vendor, "sha512", "sha1", 1), want: "does not state the version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := maps.Clone(whole)
			if tc.file != "" {
				files[tc.file] = []byte(tc.content)
			}
			folder := fstest.MapFS{}
			for name, data := range files {
				folder[name] = &fstest.MapFile{Data: data}
			}
			problems, err := Problems(folder)
			if err != nil {
				t.Fatal(err)
			}
			if (tc.want == "") != (len(problems) == 0) || len(problems) > 1 || !strings.Contains(strings.Join(problems, "\n"), tc.want) {
				t.Errorf("got %q, want one with %q", problems, tc.want)
			}
		})
	}
}
