//go:build unix

package check

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

const kubernetes = "../kubernetes"

// manifests are the resources of the base, by kind.
type manifests struct {
	deployments []*apps.Deployment
	jobs        []*batch.Job
	services    []*core.Service
	configs     map[string]*core.ConfigMap
	secrets     map[string]*core.Secret
	budgets     []*policy.PodDisruptionBudget
	scalers     []*autoscaling.HorizontalPodAutoscaler
	networks    []*networking.NetworkPolicy
}

// decode decodes a document strictly.
func decode[T any](t *testing.T, path, doc string) *T {
	t.Helper()
	v := new(T)
	if err := yaml.UnmarshalStrict([]byte(doc), v); err != nil {
		t.Errorf("%s: %v", path, err)
	}
	return v
}

// base reads every manifest of the folder. Those of the kustomization must be all but the examples.
func base(t *testing.T) *manifests {
	t.Helper()
	var k struct{ Resources []string }
	if err := yaml.Unmarshal([]byte(read(t, kubernetes+"/kustomization.yaml")), &k); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(kubernetes + "/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m := &manifests{configs: make(map[string]*core.ConfigMap), secrets: make(map[string]*core.Secret)}
	for _, path := range found {
		name := filepath.Base(path)
		if name == "kustomization.yaml" || name == "prometheus-adapter.yaml" {
			continue
		}
		if example := strings.HasSuffix(name, ".example.yaml"); example == slices.Contains(k.Resources, name) {
			t.Errorf("%s: an example: %v, in kustomization.yaml: %v", name, example, !example)
		}
		m.add(t, name, read(t, path))
	}
	for _, name := range k.Resources {
		if !slices.Contains(found, filepath.Join(kubernetes, name)) {
			t.Errorf("kustomization.yaml: %s does not exist", name)
		}
	}
	if len(m.deployments) != 2 || len(m.jobs) != 1 || len(m.budgets) != 2 || len(m.scalers) != 2 || len(m.services) != 1 {
		t.Fatalf("read %+v", m)
	}
	return m
}

func (m *manifests) add(t *testing.T, name, text string) {
	t.Helper()
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var kind meta.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		switch kind.APIVersion + " " + kind.Kind {
		case "apps/v1 Deployment":
			m.deployments = append(m.deployments, decode[apps.Deployment](t, name, doc))
		case "batch/v1 Job":
			m.jobs = append(m.jobs, decode[batch.Job](t, name, doc))
		case "v1 Service":
			m.services = append(m.services, decode[core.Service](t, name, doc))
		case "v1 ConfigMap":
			c := decode[core.ConfigMap](t, name, doc)
			m.configs[c.Name] = c
		case "v1 Secret":
			s := decode[core.Secret](t, name, doc)
			m.secrets[s.Name] = s
		case "v1 Namespace":
			decode[core.Namespace](t, name, doc)
		case "policy/v1 PodDisruptionBudget":
			m.budgets = append(m.budgets, decode[policy.PodDisruptionBudget](t, name, doc))
		case "autoscaling/v2 HorizontalPodAutoscaler":
			m.scalers = append(m.scalers, decode[autoscaling.HorizontalPodAutoscaler](t, name, doc))
		case "networking.k8s.io/v1 NetworkPolicy":
			m.networks = append(m.networks, decode[networking.NetworkPolicy](t, name, doc))
		default:
			t.Errorf("%s: no test knows %v", name, kind)
		}
	}
}

// container returns the only container of a pod as a unit.
func (m *manifests) container(t *testing.T, pod *core.PodSpec) (*unit, *core.Container) {
	t.Helper()
	if len(pod.Containers) != 1 {
		t.Fatalf("a pod has %d containers", len(pod.Containers))
	}
	c := &pod.Containers[0]
	u := &unit{name: c.Name, args: c.Args, env: make(map[string]string)}
	for _, from := range c.EnvFrom {
		config := m.configs[from.ConfigMapRef.Name]
		if config == nil {
			t.Fatalf("%s: there is no ConfigMap %s", c.Name, from.ConfigMapRef.Name)
		}
		for name, value := range config.Data {
			u.env[name] = value
		}
	}
	for _, e := range c.Env {
		if u.env[e.Name] = e.Value; e.ValueFrom != nil {
			ref := e.ValueFrom.SecretKeyRef
			if s := m.secrets[ref.Name]; s == nil || s.StringData[ref.Key] != "REPLACE-ME" {
				t.Errorf("%s: secret.example.yaml has no placeholder for %s of %s", c.Name, ref.Key, ref.Name)
			}
			u.env[e.Name] = secret
		}
	}
	withCA(t, u, pod, c)
	for _, port := range c.Ports {
		u.ports = append(u.ports, strconv.Itoa(int(port.ContainerPort)))
	}
	if pod.TerminationGracePeriodSeconds != nil {
		u.grace = time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second
	}
	if c.Lifecycle != nil { // the time begins with preStop
		u.grace -= time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
	}
	return u, c
}

// withCA replaces the file of the database's CA, which must be in a volume, with one that exists here.
func withCA(t *testing.T, u *unit, pod *core.PodSpec, c *core.Container) {
	t.Helper()
	db, path, ok := strings.Cut(u.env["FLASHSALE_DB"], "sslrootcert=")
	mounted := false
	for _, v := range pod.Volumes {
		for _, mount := range c.VolumeMounts {
			if v.Name == mount.Name && v.Secret != nil {
				mounted = mounted || mount.MountPath+"/"+v.Secret.Items[0].Path == path
			}
		}
	}
	if !ok || !mounted {
		t.Errorf("%s: %q is not in a volume", u.name, path)
	}
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	file := filepath.Join(t.TempDir(), "ca.crt")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	u.env["FLASHSALE_DB"] = db + "sslrootcert=" + file
}

func TestKubernetes_Pods(t *testing.T) {
	t.Parallel()
	m := base(t)
	pods := []*core.PodSpec{&m.jobs[0].Spec.Template.Spec}
	for _, d := range m.deployments {
		pods = append(pods, &d.Spec.Template.Spec)
		u, c := m.container(t, &d.Spec.Template.Spec)
		for p, path := range map[*core.Probe]string{
			c.StartupProbe: "/healthz", c.ReadinessProbe: "/readyz", c.LivenessProbe: "/healthz", // only the second may depend on Redis and the database
		} {
			if p == nil || port(c, p.HTTPGet.Port) == "" || p.HTTPGet.Path != path {
				t.Errorf("%s: a probe is missing, its port, or its path %s: %+v", u.name, path, p)
			}
		}
	}
	for _, pod := range pods {
		u, c := m.container(t, pod)
		testUnit(t, u)
		s, p := c.SecurityContext, pod.SecurityContext
		if s == nil || p == nil || !*p.RunAsNonRoot || p.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault ||
			!*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
			t.Errorf("%s: security context %+v of the pod, %+v of the container", u.name, p, s)
		}
		if c.Resources.Requests.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero() {
			t.Errorf("%s: resources %+v", u.name, c.Resources)
		}
		for _, mount := range c.VolumeMounts {
			if !slices.ContainsFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == mount.Name }) {
				t.Errorf("%s: there is no volume %s", u.name, mount.Name)
			}
		}
	}
}

// port returns a container's port by its name or number; empty if it has none.
func port(c *core.Container, at intstr.IntOrString) string {
	for _, p := range c.Ports {
		if at.String() == p.Name || at.IntValue() == int(p.ContainerPort) {
			return strconv.Itoa(int(p.ContainerPort))
		}
	}
	return ""
}

// covers reports whether a selector is not empty and matches the labels.
func covers(selector, labels map[string]string) bool {
	for name, value := range selector {
		if labels[name] != value {
			return false
		}
	}
	return len(selector) > 0
}

// Every selector matches exactly the pods that its name says.
func TestKubernetes_Selectors(t *testing.T) {
	t.Parallel()
	m := base(t)
	selectors := make(map[string]map[string]string)
	for _, b := range m.budgets {
		selectors["PodDisruptionBudget "+b.Name] = b.Spec.Selector.MatchLabels
	}
	for _, s := range m.services {
		selectors["Service "+s.Name] = s.Spec.Selector
	}
	for _, n := range m.networks {
		selectors["NetworkPolicy "+n.Name] = n.Spec.PodSelector.MatchLabels
	}
	for _, d := range m.deployments {
		selectors["Deployment "+d.Name] = d.Spec.Selector.MatchLabels
		selectors["topologySpreadConstraints of "+d.Name] = d.Spec.Template.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels
	}
	for name, selector := range selectors {
		for _, d := range m.deployments {
			want := strings.HasSuffix(name, d.Name) || name == "NetworkPolicy flashsale"
			if covers(selector, d.Spec.Template.Labels) != want {
				t.Errorf("%s selects %v; is it to match %s: %v", name, selector, d.Name, want)
			}
		}
	}
	for _, s := range m.services {
		for _, d := range m.deployments {
			if strings.HasSuffix(s.Name, d.Name) && port(&d.Spec.Template.Spec.Containers[0], s.Spec.Ports[0].TargetPort) != "8080" {
				t.Errorf("Service %s: %s has no port %v", s.Name, d.Name, s.Spec.Ports[0].TargetPort.String())
			}
		}
	}
	for _, h := range m.scalers {
		if ref := h.Spec.ScaleTargetRef; ref.Name != h.Name || !slices.ContainsFunc(m.deployments, func(d *apps.Deployment) bool { return d.Name == ref.Name }) {
			t.Errorf("HorizontalPodAutoscaler %s scales %+v", h.Name, ref)
		}
	}
}

// Ingress is open on ports on which the pods listen.
func TestKubernetes_NetworkPolicies(t *testing.T) {
	t.Parallel()
	m := base(t)
	open := 0
	for _, n := range m.networks {
		for _, in := range n.Spec.Ingress {
			for _, p := range in.Ports {
				for _, d := range m.deployments {
					open++
					if covers(n.Spec.PodSelector.MatchLabels, d.Spec.Template.Labels) && port(&d.Spec.Template.Spec.Containers[0], *p.Port) == "" {
						t.Errorf("NetworkPolicy %s opens %s, and %s has no such port", n.Name, p.Port, d.Name)
					}
				}
			}
		}
	}
	if open == 0 {
		t.Error("no policy opens a port")
	}
}
