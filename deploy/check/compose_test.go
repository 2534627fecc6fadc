//go:build unix

package check

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"

	"flashsale/internal/testing/prometheus"
)

// variables are those that the user of a compose file must set.
func variables() types.Mapping {
	return types.Mapping{"TAG": "v1.2.3", "FLASHSALE_JWT_SECRET": secret, "SHOP_PASSWORD": "a", "OWNER_PASSWORD": "b"}
}

func load(t *testing.T, file string, env types.Mapping) (*types.Project, error) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../compose", file))
	if err != nil {
		t.Fatal(err)
	}
	return loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: filepath.Dir(path), ConfigFiles: []types.ConfigFile{{Filename: path}}, Environment: env,
	})
}

func TestCompose(t *testing.T) {
	t.Parallel()
	for file, processes := range map[string]int{"single.yaml": 3, "cluster.yaml": 5} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			p, err := load(t, file, variables())
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for name, s := range p.Services {
				if image, tag, ok := strings.Cut(s.Image, ":"); !ok || !strings.ContainsAny(tag, "0123456789") {
					t.Errorf("%s: the image %s has no version: %s", name, image, s.Image)
				}
				for _, v := range s.Volumes {
					if _, err := os.Stat(v.Source); v.Type == types.VolumeTypeBind && err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
				for other, on := range s.DependsOn {
					testDependency(t, name, other, on, p.Services[other])
				}
				if s.Restart == "" {
					t.Errorf("%s has no restart policy", name)
				}
				switch {
				case strings.HasPrefix(s.Image, "flashsale:"):
					n++
					testUnit(t, composeUnit(&s))
				case slices.Contains(s.Command, "redis-server"):
					testRedis(t, name, s.Command)
				}
			}
			if n != processes {
				t.Errorf("%d services run the program, want %d", n, processes)
			}
		})
	}
}

func composeUnit(s *types.ServiceConfig) *unit {
	u := &unit{name: s.Name, args: s.Command, env: make(map[string]string)}
	for name, value := range s.Environment {
		if value != nil {
			u.env[name] = *value
		}
	}
	if s.StopGracePeriod != nil {
		u.grace = time.Duration(*s.StopGracePeriod)
	}
	for _, port := range s.Ports {
		u.ports = append(u.ports, strconv.Itoa(int(port.Target)))
	}
	return u
}

// testDependency checks that the condition can become true.
func testDependency(t *testing.T, name, other string, on types.ServiceDependency, s types.ServiceConfig) {
	t.Helper()
	switch on.Condition {
	case types.ServiceConditionHealthy:
		if s.HealthCheck == nil || len(s.HealthCheck.Test) < 2 {
			t.Errorf("%s waits for the health of %s, which has no check", name, other)
		}
	case types.ServiceConditionCompletedSuccessfully:
		if s.Restart != "on-failure" {
			t.Errorf("%s waits for the end of %s, whose restart policy is %q", name, other, s.Restart)
		}
	default:
		t.Errorf("%s waits for %s under the condition %q", name, other, on.Condition)
	}
}

// testRedis checks the settings with which Redis keeps what it has acknowledged.
func testRedis(t *testing.T, name string, command []string) {
	t.Helper()
	text := strings.Join(command, " ") + " "
	for _, want := range []string{"--appendonly yes ", "--appendfsync always ", "--maxmemory-policy noeviction "} {
		if !strings.Contains(text, want) {
			t.Errorf("%s has no %s", name, want)
		}
	}
}

// A compose file has no default for a secret: each variable is required.
func TestCompose_ErrUnset(t *testing.T) {
	t.Parallel()
	for file, names := range map[string][]string{
		"single.yaml":  {"TAG", "FLASHSALE_JWT_SECRET"},
		"cluster.yaml": {"TAG", "FLASHSALE_JWT_SECRET", "SHOP_PASSWORD", "OWNER_PASSWORD"},
	} {
		for _, name := range names {
			env := maps.Clone(variables())
			delete(env, name)
			if _, err := load(t, file, env); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s without %s: %v", file, name, err)
			}
		}
	}
}

// The scrape targets are the processes, on the port of their metrics, and promtool accepts the file.
func TestCompose_Prometheus(t *testing.T) {
	t.Parallel()
	p, err := load(t, "cluster.yaml", variables())
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, "../compose/prometheus.yaml")
	for name, s := range p.Services {
		if !strings.HasPrefix(s.Image, "flashsale:") || s.Command[0] == "migrate" {
			continue
		}
		_, flags := composeUnit(&s).command()
		target := fmt.Sprintf("%q", name+":"+portOf(settings(t, flags, imageEnv(t))["ops-addr"].value))
		if !strings.Contains(text, target) {
			t.Errorf("prometheus.yaml has no target %s", target)
		}
	}
	dir := t.TempDir()
	for _, v := range p.Services["prometheus"].Volumes {
		if v.Type == types.VolumeTypeBind {
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(v.Target)), []byte(read(t, v.Source)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	prometheus.Promtool(t, dir, "check", "config", "prometheus.yaml")
}

// output runs a command and returns its standard output.
func output(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Stderr = dir, t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v", name, args, err)
	}
	return string(out)
}
