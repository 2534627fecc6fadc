//go:build linux

// The tests of this folder check the units with systemd's own tools and against the program,
// and run their commands.
package systemd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/deploytest"
	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

const (
	program     = "/usr/local/bin/flashsale"
	environment = "flashsale.env"
	secrets     = "secrets.yaml.example"
	// exposure is the highest level that `systemd-analyze security` may report, times ten. The
	// units have 1.2: they need the network and have no root directory of their own.
	exposure = "--threshold=15"
	// margin is the minimum of TimeoutStopSec= beyond --drain. Each part of the program may
	// take another second then.
	margin = 30 * time.Second
)

func TestMain(m *testing.M) { process.Main(m) }

// unit is a parsed unit file: the values by "Section.Name", in their order.
type unit map[string][]string

// one returns the value of a setting that occurs once.
func (u unit) one(t *testing.T, name string) string {
	t.Helper()
	if len(u[name]) != 1 {
		t.Fatalf("%s has the values %q, want one", name, u[name])
	}
	return u[name][0]
}

// units reads all unit files of this folder, by their names.
func units(t *testing.T) map[string]unit {
	t.Helper()
	paths, err := filepath.Glob("*.service")
	if err != nil || len(paths) != 3 {
		t.Fatalf("%d units, %v", len(paths), err)
	}
	all := make(map[string]unit)
	for _, path := range paths {
		u, section := make(unit), ""
		for _, line := range lines(t, path) {
			if name, ok := strings.CutPrefix(line, "["); ok {
				section = strings.TrimSuffix(name, "]")
				continue
			}
			name, value, ok := strings.Cut(line, "=")
			if !ok || section == "" || strings.HasSuffix(line, `\`) {
				t.Fatalf("%s: cannot read the line %q", path, line)
			}
			u[section+"."+name] = append(u[section+"."+name], value)
		}
		all[path] = u
	}
	return all
}

// lines returns the lines of a file without comments and empty lines.
func lines(t *testing.T, path string) (all []string) {
	t.Helper()
	for line := range strings.Lines(text(t, path)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// write writes a file that only its owner can read.
func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// systemd accepts every unit without a warning, and rates its sandbox.
func TestUnits_Analyze(t *testing.T) {
	analyze := deploytest.Need(t, "systemd-analyze", "systemd")
	dir, binary := t.TempDir(), process.Build(t)
	var paths []string
	for name := range units(t) {
		path := filepath.Join(dir, name)
		write(t, path, strings.ReplaceAll(text(t, name), program, binary))
		paths = append(paths, path)
	}
	out, err := exec.CommandContext(t.Context(), analyze, append([]string{"verify", "--man=no"}, paths...)...).CombinedOutput()
	if err != nil || len(out) != 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	for _, path := range paths {
		out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--no-pager", exposure, path).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Overall exposure level") {
			t.Errorf("systemd-analyze security %s: %v\n%s", path, err, out)
		}
	}
}

// The files name only flags, commands and settings that the program has.
func TestUnits_Settings(t *testing.T) {
	known := make(map[string]bool)
	for line := range strings.Lines(deploytest.Run(t, 0, nil, "config")) {
		known[strings.Fields(line)[0]] = true
	}
	if !known["redis"] || !known["drain"] {
		t.Fatalf("flashsale config prints %v", known)
	}
	flag, variable := regexp.MustCompile(`--([a-z-]+)`), regexp.MustCompile(`FLASHSALE_[A-Z_]+`)
	checkVariables := func(file string) {
		found := variable.FindAllString(text(t, file), -1)
		if len(found) == 0 {
			t.Errorf("%s names no setting", file)
		}
		for _, name := range found {
			if !known[strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "FLASHSALE_")), "_", "-")] {
				t.Errorf("%s: no setting has the variable %s", file, name)
			}
		}
	}
	for name, u := range units(t) {
		checkVariables(name)
		words := strings.Fields(u.one(t, "Service.ExecStart"))
		if words[0] != program {
			t.Errorf("%s starts %s", name, words[0])
		}
		first := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "-") })
		if first < 0 {
			first = len(words)
		}
		help := deploytest.Run(t, 0, nil, append(slices.Clone(words[1:first]), "--help")...)
		if want := "flashsale " + strings.Join(words[1:first], " ") + " [flags]"; !strings.Contains(help, want) {
			t.Errorf("%s: there is no command %q", name, want)
		}
		for _, f := range flag.FindAllStringSubmatch(strings.Join(words[first:], " "), -1) {
			if !strings.Contains(help, "--"+f[1]+" ") {
				t.Errorf("%s: the command has no flag --%s", name, f[1])
			}
		}
	}
	checkVariables(environment)
	for _, m := range regexp.MustCompile(`(?m)^#?([a-z-]+): `).FindAllStringSubmatch(text(t, secrets), -1) {
		if !known[m[1]] {
			t.Errorf("%s: there is no setting %s", secrets, m[1])
		}
	}
}

// The example has no secret that works: the program refuses it.
func TestSecrets_Example(t *testing.T) {
	out := deploytest.Run(t, 2, []string{"FLASHSALE_CONFIG=" + absolute(t, secrets)}, "config")
	if !strings.Contains(out, "jwt-secret") {
		t.Errorf("the example is refused for another reason: %s", out)
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// systemd does not kill a process that still drains.
func TestUnits_StopTimeout(t *testing.T) {
	help := deploytest.Run(t, 0, nil, "api", "--help")
	m := regexp.MustCompile(`--drain duration .*\(default (\w+)\)`).FindStringSubmatch(help)
	if m == nil {
		t.Fatal("no default of --drain in the help")
	}
	drain, err := time.ParseDuration(m[1])
	if err != nil {
		t.Fatal(err)
	}
	for name, u := range units(t) {
		if u["Service.Type"][0] == "oneshot" {
			continue
		}
		stop, err := time.ParseDuration(u.one(t, "Service.TimeoutStopSec") + "s")
		if err != nil || stop < drain+margin {
			t.Errorf("%s: TimeoutStopSec is %v, %v; want %v after the drain of %v", name, stop, err, margin, drain)
		}
		if got := u.one(t, "Service.Type"); got != "exec" {
			t.Errorf("%s: Type=%s; the program does not notify systemd", name, got)
		}
	}
}

// machine stands for the host of the units: their paths and addresses are substituted.
type machine struct {
	dir, addr, apiOps, workerOps string
}

// words returns the command of a unit after the program, and its environment.
func (m *machine) words(t *testing.T, name string, u unit) (args, env []string) {
	t.Helper()
	replace := strings.NewReplacer(
		"%d", filepath.Join(m.dir, "credentials", name), "%i", "1", "/var/lib/flashsale", m.dir, "/etc/flashsale", m.dir,
		"127.0.0.1:8080", m.addr, "127.0.0.1:9090", m.apiOps, "127.0.0.1:910%i", m.workerOps)
	for _, path := range u["Service.EnvironmentFile"] {
		if path != "/etc/flashsale/"+environment {
			t.Fatalf("%s reads %s", name, path)
		}
		for _, line := range lines(t, environment) {
			env = append(env, replace.Replace(line))
		}
	}
	for _, e := range u["Service.Environment"] {
		env = append(env, replace.Replace(e))
	}
	return strings.Fields(replace.Replace(strings.TrimPrefix(u.one(t, "Service.ExecStart"), program+" "))), env
}

// credentials copies the secrets of a unit to where its program reads them.
func (m *machine) credentials(t *testing.T, name string, u unit, redis string) {
	t.Helper()
	id, source, ok := strings.Cut(u.one(t, "Service.LoadCredential"), ":")
	if !ok || !strings.HasPrefix(source, "/etc/flashsale/") {
		t.Fatalf("%s loads %s from %s", name, id, source)
	}
	content := strings.ReplaceAll(text(t, secrets), "/var/lib/flashsale", m.dir)
	content = strings.ReplaceAll(content, "jwt-secret: CHANGE-ME", "jwt-secret: "+deploytest.Secret)
	content = regexp.MustCompile(`(?m)^redis: .*`).ReplaceAllLiteralString(content, "redis: redis://"+redis+"/0")
	dir := filepath.Join(m.dir, "credentials", name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, id), content)
}

// Given the commands, environment and secrets of the units, when they are run in their order,
// then a buyer buys, and every process ends with 0 after SIGTERM.
func TestUnits_Run(t *testing.T) {
	redis := redistest.Real(t)
	m := &machine{dir: t.TempDir(), addr: process.FreeAddr(t), apiOps: process.FreeAddr(t), workerOps: process.FreeAddr(t)}
	all := units(t)
	for name, u := range all {
		m.credentials(t, name, u, redis.Addr())
	}
	args, env := m.words(t, "flashsale-migrate.service", all["flashsale-migrate.service"])
	deploytest.Run(t, 0, env, args...)
	start := func(name, addr, ops string) *process.P {
		args, env := m.words(t, name, all[name])
		return process.Start(t, process.Spec{Command: args[0], Args: args[1:], Env: env, Addr: addr, OpsAddr: ops})
	}
	running := []*process.P{
		start("flashsale-api.service", m.addr, m.apiOps),
		start("flashsale-worker@.service", "", m.workerOps),
	}
	deploytest.CreateItem(t, running[0].URL(), "drop-1", "15m")
	if order := deploytest.Buy(t, running[0].URL(), "drop-1", "alice"); !strings.Contains(order, "drop-1") {
		t.Errorf("bought %s", order)
	}
	for _, p := range running {
		if code := p.Stop(); code != 0 {
			t.Errorf("%s ended with %d:\n%s", p.Spec().Command, code, p.Log())
		}
	}
}
