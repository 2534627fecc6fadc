package browser

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/chromedp"

	"flashsale/internal/testing/await"
)

// limit bounds each wait of a page. A shorter one is useful while a test is being written.
var limit = flag.Duration("browser.limit", await.Limit, "limit of each wait for a page")

// programs are the names of the browser in PATH, in order of preference.
var programs = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}

// Program returns the path of Chromium. If it is not installed, the test is skipped, or fails with
// CI=true.
func Program(t testing.TB) string {
	t.Helper()
	for _, name := range programs {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("chromium is not installed, and with CI=true its tests may not be skipped; `make deps-test` installs it")
	}
	t.Skip("skipped: chromium is not installed; `make deps-test` installs it")
	return ""
}

// shared is the browser of the test binary.
var shared struct {
	mu      sync.Mutex
	ctx     context.Context // nil until the first page, and after Shutdown
	stop    context.CancelFunc
	agent   string // user agent
	hasMain bool   // whether Main will stop it
}

// Main runs the tests of a binary and then stops the browser:
//
//	func TestMain(m *testing.M) { browser.Main(m) }
//
// A TestMain that does more calls [Run] instead.
func Main(m *testing.M) {
	Run(m) // the test framework exits with the code
}

// Run is [Main] for a TestMain that does more afterwards. It returns the exit code.
func Run(m *testing.M) int {
	shared.mu.Lock()
	shared.hasMain = true
	shared.mu.Unlock()
	code := m.Run()
	shutdown()
	return code
}

// shutdown stops the browser with all its processes and removes its profile.
func shutdown() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.ctx == nil {
		return
	}
	shared.stop() // kills the browser and waits for its processes
	shared.ctx = nil
}

// running returns the context of the browser, which the first call starts, and its user agent.
func running(t testing.TB) (context.Context, string, error) {
	t.Helper()
	program := Program(t)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.ctx != nil {
		return shared.ctx, shared.agent, nil
	}
	if !shared.hasMain {
		return nil, "", errors.New("browser: the package needs func TestMain(m *testing.M) { browser.Main(m) }")
	}
	// The browser outlives the test that starts it.
	parent, stopAll := context.WithCancel(context.WithoutCancel(t.Context()))
	parent, closeAllocator := chromedp.NewExecAllocator(parent, flags(program)...)
	ctx, closeBrowser := chromedp.NewContext(parent, chromedp.WithLogf(ignoref))
	stop := func() {
		stopAll()
		closeBrowser()
		closeAllocator()
	}
	// The context of the first call is the browser's own, so a timer ends a start that hangs.
	slow := time.AfterFunc(*limit, stopAll)
	version, err := chromedp.CallBrowser(ctx, browser.GetVersion, cdp.Empty{})
	if !slow.Stop() || err != nil {
		stop()
		return nil, "", fmt.Errorf("browser: start %s: %w", program, err)
	}
	shared.ctx, shared.stop, shared.agent = ctx, stop, version.UserAgent
	return ctx, version.UserAgent, nil
}

// ignoref drops the messages of the protocol's client, which are about events that it does not know.
func ignoref(string, ...any) {}

// flags are the options of the browser. It is connected by a pipe, so it ends with the test binary even if
// that is killed; on Linux, the kernel also kills it. The client adds --no-sandbox for root, and a
// temporary profile.
func flags(program string) []chromedp.ExecAllocatorOption {
	return append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program),
		chromedp.DisableGPU,
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-crash-reporter", true),
		chromedp.Flag("disable-domain-reliability", true),
		chromedp.Flag("disable-features", "Translate,MediaRouter,OptimizationHints,AutofillServerCommunication,HttpsUpgrades,DialMediaRouteProvider"),
		// Nothing that a page or the browser loads leaves the machine.
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"),
	)
}
