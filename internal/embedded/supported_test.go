package embedded

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flashsale/internal/testing/repo"
)

// TestSupported: the interpreter runs every script of the service, and leaves others to miniredis.
func TestSupported(t *testing.T) {
	t.Parallel()
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".lua") {
			return err
		}
		text, err := os.ReadFile(path)
		if !supported(string(text)) {
			t.Errorf("%s is not supported", path)
		}
		files++
		return err
	})
	if err != nil || files < 30 {
		t.Errorf("%d scripts, %v", files, err)
	}
	for _, text := range []string{
		"return cjson.encode({})", "return redis.sha1hex('')", "redis.log(redis.LOG_NOTICE, 'x')", "return redis['call']('PING')",
		"return os.clock()", "local b = bit.band(1, 2)", "return load('return 1')()", "return server.call('PING')",
	} {
		if supported(text) {
			t.Errorf("%s is supported", text)
		}
	}
	for _, text := range []string{"-- this package's scripts\nreturn 1", "return 'pos.' .. redis.call('GET', KEYS[1])", "return tostring(redis.pcall('PING').ok)"} {
		if !supported(text) {
			t.Errorf("%s is not supported", text)
		}
	}
}
