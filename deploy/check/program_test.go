//go:build unix

package check

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

const (
	root = "../.."
	// margin is the time beside --drain that a process may need to end if Redis does not answer; see
	// docs/deployment.md.
	margin = 10 * time.Second
)

// secret is a key for the tests' processes.
var secret = strings.Repeat("s", 32)

var program struct {
	once sync.Once
	dir  string
	path string
	err  error
	out  []byte
}

func TestMain(m *testing.M) {
	code := m.Run()
	process.Shutdown()
	redistest.Shutdown()
	if program.dir != "" {
		if err := os.RemoveAll(program.dir); err != nil {
			panic(err)
		}
	}
	os.Exit(code)
}

// binary returns the path of the program, which is built with the command in the Dockerfile.
func binary(t *testing.T) string {
	t.Helper()
	program.once.Do(func() {
		if program.dir, program.err = os.MkdirTemp("", "deploy-"); program.err != nil {
			return
		}
		path := filepath.Join(program.dir, "flashsale")
		// Without the context of a test: all tests share the build.
		command := strings.ReplaceAll(buildCommand(t), "/out/flashsale", path)
		cmd := exec.Command("sh", "-euc", command)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "VERSION=v1.2.3", "REVISION=abcdef")
		if program.out, program.err = cmd.CombinedOutput(); program.err == nil {
			program.path = path
		}
	})
	if program.path == "" {
		t.Fatalf("the command of the Dockerfile fails: %v\n%s", program.err, program.out)
	}
	return program.path
}

// unit is a container that runs the program.
type unit struct {
	name  string
	args  []string
	env   map[string]string
	grace time.Duration // between SIGTERM and SIGKILL
	ports []string      // on which it is used
}

// setting is a row of `flashsale config`.
type setting struct{ value, origin string }

// row matches a row of `flashsale config`.
var row = regexp.MustCompile(`(?m)^([a-z-]+) +(\S.*?) {2,}(\S.*)$`)

// settings are those that the program reads from flags and environment.
func settings(t *testing.T, flags []string, env map[string]string) map[string]setting {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary(t), append([]string{"config"}, flags...)...)
	cmd.Dir = t.TempDir()
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("flashsale config %q: %v\n%s", flags, err, out)
	}
	all := make(map[string]setting)
	for _, m := range row.FindAllStringSubmatch(string(out), -1) {
		all[m[1]] = setting{m[2], m[3]}
	}
	if len(all) < 20 {
		t.Fatalf("flashsale config shows %d settings:\n%s", len(all), out)
	}
	return all
}

// command splits the arguments into the command's words and its flags.
func (u *unit) command() (words, flags []string) {
	for i, arg := range u.args {
		if strings.HasPrefix(arg, "-") {
			return u.args[:i], u.args[i:]
		}
	}
	return u.args, nil
}

// testUnit checks command, flags, variables, ports and time to stop of a container.
func testUnit(t *testing.T, u *unit) {
	t.Helper()
	words, flags := u.command()
	out, err := exec.CommandContext(t.Context(), binary(t), append(slices.Clone(u.args), "--help")...).CombinedOutput()
	if usage := "flashsale " + strings.Join(words, " ") + " [flags]"; err != nil || !strings.Contains(string(out), usage+"\n") {
		t.Errorf("%s: %q is no command: %v\n%s", u.name, u.args, err, out)
	}
	env := maps.Clone(imageEnv(t))
	maps.Copy(env, u.env)
	all := settings(t, flags, env)
	for name := range env {
		key, ok := strings.CutPrefix(name, "FLASHSALE_")
		key = strings.ReplaceAll(strings.ToLower(key), "_", "-")
		if ok && all[key].origin != "environment "+name && all[key].origin != "flag" {
			t.Errorf("%s: the program does not read %s", u.name, name)
		}
	}
	listens := []string{portOf(all["ops-addr"].value)}
	if words[0] == "api" {
		listens = append(listens, portOf(all["addr"].value))
	}
	for _, port := range u.ports {
		if !slices.Contains(listens, port) {
			t.Errorf("%s: port %s is used, and the program listens on %v", u.name, port, listens)
		}
	}
	if words[0] == "migrate" {
		return
	}
	drain, err := time.ParseDuration(all["drain"].value)
	if err != nil {
		t.Fatal(err)
	}
	if u.grace < drain+margin {
		t.Errorf("%s: it is killed %v after SIGTERM, and its drain takes up to %v", u.name, u.grace, drain)
	}
}

func portOf(addr string) string { return addr[strings.LastIndex(addr, ":")+1:] }

// Every variable that a file or its comments mention is a setting.
func TestVariables(t *testing.T) {
	t.Parallel()
	known := settings(t, nil, nil)
	variable := regexp.MustCompile(`FLASHSALE_[A-Z_]*[A-Z]`)
	n := 0
	for _, path := range files(t) {
		for _, name := range variable.FindAllString(read(t, path), -1) {
			n++
			key := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "FLASHSALE_")), "_", "-")
			if _, ok := known[key]; !ok {
				t.Errorf("%s: the program has no setting %s", path, name)
			}
		}
	}
	if n == 0 {
		t.Error("no file has a variable")
	}
}

// files are the files for deployments.
func files(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"../docker/*", "../compose/*.*", "../compose/grafana/*", "../kubernetes/*"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		all = append(all, found...)
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
