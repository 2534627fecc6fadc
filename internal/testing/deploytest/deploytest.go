//go:build unix

// Package deploytest has what the tests of the deployment files share: commands with the
// settings of a shop, and calls of its API.
package deploytest

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/process"
)

// Secret signs the tokens of the tests.
const Secret = "deployment-tests-secret-of-more-than-32-bytes"

// callWithin bounds one call of the API.
const callWithin = 30 * time.Second

// Need returns the path of a program. Without it the test is skipped, or fails with CI=true.
func Need(t testing.TB, program, debian string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err == nil {
		return path
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is not installed, and with CI=true no test may be skipped; install the Debian package %s", program, debian)
	}
	t.Skipf("skipped: %s is not installed; install the Debian package %s", program, debian)
	return ""
}

// Run runs a command of the service, which must end with the exit code, and returns its output.
func Run(t testing.TB, code int, env []string, args ...string) string {
	t.Helper()
	r := process.Run(t, process.Spec{Args: args, Env: env})
	if r.Code != code {
		t.Fatalf("flashsale %s: exit code %d, want %d\n%s", strings.Join(args, " "), r.Code, code, r.Output)
	}
	return r.Output
}

// Token signs a token with Secret.
func Token(t testing.TB, subject, role string) string {
	t.Helper()
	return strings.TrimSpace(Run(t, 0, []string{"FLASHSALE_JWT_SECRET=" + Secret}, "token", "--sub", subject, "--role", role))
}

// Call sends a request with a JSON body, and returns the status and the body of the answer.
// headers are names and values.
func Call(t testing.TB, method, url, token, body string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{Timeout: callWithin, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// CreateItem opens a sale of ten units with the command that operators use.
func CreateItem(t testing.TB, url, id, window string) {
	t.Helper()
	Run(t, 0, nil, "item", "create", "--server", url, "--token", Token(t, "ada", "admin"), "--wait", "30s",
		"--id", id, "--name", "Drop", "--price-minor", "4900", "--stock", "10", "--limit", "2", "--payment-window", window)
}

// Buy buys one unit, and waits until the order is committed. It returns the body of the answer.
func Buy(t testing.TB, url, item, buyer string) string {
	t.Helper()
	status, body := Call(t, "POST", url+"/v1/items/"+item+"/orders", Token(t, buyer, "buyer"), `{"quantity":1}`,
		"Idempotency-Key", "key-of-"+buyer, "Prefer", "wait=20")
	if status != http.StatusCreated {
		t.Fatalf("%s buys: %d %s", buyer, status, body)
	}
	return body
}
