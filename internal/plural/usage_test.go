package plural_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"flashsale/internal/testing/repo"
)

// alwaysPlural is a format with a number before a plural, as in "commit %d orders".
var alwaysPlural = regexp.MustCompile(`"[^"]*%d (?:[a-z]+ )?(?:orders|sales|units|items|tasks|payments|releases|deliveries|streams|buyers|commits|letters|keys)\b`)

// TestCount_EveryMessage: the packages whose messages operators read write the number of one thing with a
// singular.
func TestCount_EveryMessage(t *testing.T) {
	t.Parallel()
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, folder := range []string{"cmd", "handler", "order", "inventory", "catalog", "webhook"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if strings.HasSuffix(e.Name(), "test") && e.IsDir() {
				return filepath.SkipDir // fixtures of the tests
			}
			if e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			read++
			for _, found := range alwaysPlural.FindAllString(string(text), -1) {
				t.Errorf("%s: %s: write the number with plural.Count", path, found)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if read < 100 {
		t.Errorf("%d files were read: the test saw too few", read)
	}
}
