//go:build unix

package pages_test

import (
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/browser"
)

// pictureReport shows the report of a load test with readers before the opening and stragglers after
// it.
func pictureReport(t *testing.T, o browser.Options) *browser.Page {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.html")
	cmd := exec.CommandContext(await.Context(t), "go", "run", "./loadtest", "--profile", "flash", "--report", file)
	cmd.Dir = "../../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(file))))
	t.Cleanup(server.Close)
	p := browser.New(t, o)
	p.Expect("favicon.ico")
	p.Goto(server.URL + "/report.html")
	return p
}
