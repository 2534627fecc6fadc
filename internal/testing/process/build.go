package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"flashsale/internal/testing/repo"
)

// Service is the import path of the service's program.
const Service = repo.Service

// buildLimit bounds one build. With a cold cache the SQLite driver is compiled
// first, which takes minutes on a small machine.
const buildLimit = 10 * time.Minute

// programs holds the builds of this test binary. Tests share a build, because linking the
// service takes longer than most tests.
var programs struct {
	mu    sync.Mutex
	dir   string
	built map[string]*program
}

type program struct {
	dir  string
	once sync.Once
	path string
	err  error
}

// Build returns the path of the service's program. The first call in a test binary builds it,
// later calls share the result. Flags are passed to `go build`, for example "-race". Each set
// of flags has its own build.
//
// The file exists until Shutdown.
func Build(t testing.TB, flags ...string) string {
	t.Helper()
	return BuildPackage(t, Service, flags...)
}

// BuildPackage is Build for any program: pkg is its import path, or a path
// relative to the folder of the package under test.
func BuildPackage(t testing.TB, pkg string, flags ...string) string {
	t.Helper()
	path, err := build(t.Context(), pkg, flags)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func build(ctx context.Context, pkg string, flags []string) (string, error) {
	p, err := reserve(strings.Join(append([]string{pkg}, flags...), "\x00"))
	if err != nil {
		return "", err
	}
	p.once.Do(func() {
		// All tests of the binary share the result, so the build must not be cancelled at the
		// end of the test that started it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), buildLimit)
		defer cancel()
		out := filepath.Join(p.dir, filepath.Base(pkg))
		args := append(append([]string{"build", "-o", out}, flags...), pkg)
		cmd := exec.CommandContext(ctx, "go", args...)
		if pkg == Service {
			// In another module it would be built with other dependencies.
			if cmd.Dir, p.err = repo.Root(); p.err != nil {
				return
			}
		}
		if msg, err := cmd.CombinedOutput(); err != nil {
			p.err = fmt.Errorf("process: build %s: %w\n%s", pkg, err, msg)
			return
		}
		p.path = out
	})
	return p.path, p.err
}

// reserve returns the entry of a build, which the first caller then performs.
func reserve(key string) (*program, error) {
	programs.mu.Lock()
	defer programs.mu.Unlock()
	if programs.dir == "" {
		dir, err := os.MkdirTemp("", "process-")
		if err != nil {
			return nil, fmt.Errorf("process: %w", err)
		}
		// A process may run as another user; see Spec.UID.
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // it holds programs and nothing else
			return nil, fmt.Errorf("process: %w", err)
		}
		programs.dir, programs.built = dir, map[string]*program{}
	}
	p := programs.built[key]
	if p == nil {
		// Each build has its own folder: two builds may differ only in their flags, and the
		// program keeps its plain name in process lists.
		p = &program{dir: filepath.Join(programs.dir, strconv.Itoa(len(programs.built)))}
		programs.built[key] = p
	}
	return p, nil
}

// Main runs the tests of a binary and then removes what they built:
//
//	func TestMain(m *testing.M) { process.Main(m) }
func Main(m *testing.M) {
	code := m.Run()
	Shutdown()
	os.Exit(code)
}

// Shutdown removes the programs that this test binary built, for a TestMain that does more
// afterwards. It must build a program again before starting it.
func Shutdown() {
	programs.mu.Lock()
	defer programs.mu.Unlock()
	if programs.dir == "" {
		return
	}
	if err := os.RemoveAll(programs.dir); err != nil {
		fmt.Fprintln(os.Stderr, "process: remove programs:", err)
	}
	programs.dir, programs.built = "", nil
}
