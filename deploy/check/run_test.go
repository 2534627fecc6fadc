//go:build unix

package check

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	autoscaling "k8s.io/api/autoscaling/v2"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/process"
	"flashsale/internal/testing/prometheus"
	"flashsale/internal/testing/redistest"
)

// The processes of the Deployments, started with their arguments and other addresses, answer the
// probes and export the metric of the autoscaler.
func TestKubernetes_Processes(t *testing.T) {
	t.Parallel()
	m := base(t)
	dir := t.TempDir()
	env := []string{"FLASHSALE_REDIS=redis://" + redistest.Real(t).Addr() + "/0", "FLASHSALE_DB=sqlite:" + dir + "/shop.db", "FLASHSALE_JWT_SECRET=" + secret}
	job, _ := m.container(t, &m.jobs[0].Spec.Template.Spec)
	migrate := exec.CommandContext(t.Context(), binary(t), job.args...)
	if migrate.Env = append(os.Environ(), env...); migrate.Dir == "" {
		migrate.Dir = dir
	}
	if out, err := migrate.CombinedOutput(); err != nil {
		t.Fatalf("flashsale %q: %v\n%s", job.args, err, out)
	}
	pages := make(prometheus.Page)
	for _, d := range m.deployments {
		u, c := m.container(t, &d.Spec.Template.Spec)
		p := process.Start(t, process.Spec{Binary: binary(t), Command: u.args[0], Args: withoutAddrs(u.args[1:]), Env: env})
		pages.Add(get(t, p.OpsURL()+"/metrics"))
		get(t, p.OpsURL()+c.StartupProbe.HTTPGet.Path)
		get(t, p.OpsURL()+c.ReadinessProbe.HTTPGet.Path)
		get(t, p.OpsURL()+c.LivenessProbe.HTTPGet.Path)
	}
	testAdapter(t, m, pages)
}

// testAdapter checks that the autoscaler's metric has a rule, and that the processes export it for
// the queues of the rule.
func testAdapter(t *testing.T, m *manifests, pages prometheus.Page) {
	t.Helper()
	rule := read(t, kubernetes+"/prometheus-adapter.yaml")
	n := 0
	for _, h := range m.scalers {
		for _, metric := range h.Spec.Metrics {
			if metric.Type != autoscaling.ExternalMetricSourceType {
				continue
			}
			n++
			name := metric.External.Metric.Name
			if !strings.Contains(rule, "seriesQuery: '"+name+"{") {
				t.Errorf("prometheus-adapter.yaml has no rule for %s", name)
			}
			orders := false
			for _, labels := range pages[name] {
				orders = orders || strings.HasPrefix(labels["queue"], "orders-")
			}
			if !orders || !strings.Contains(rule, `queue=~"orders-.*"`) {
				t.Errorf("no process exports %s of a queue orders-N: %v", name, pages[name])
			}
		}
	}
	if n != 1 {
		t.Errorf("%d external metrics", n)
	}
}

// withoutAddrs removes the addresses, which the test chooses.
func withoutAddrs(args []string) []string {
	var rest []string
	for i := 0; i < len(args); i++ {
		if args[i] == "--addr" || args[i] == "--ops-addr" {
			i++
			continue
		}
		rest = append(rest, args[i])
	}
	return rest
}

// get waits until a path answers 200: a worker is ready once it has fetched.
func get(t *testing.T, url string) string {
	t.Helper()
	var text []byte
	await.True(t, url+" answers 200", func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		text, err = io.ReadAll(res.Body)
		return err == nil && res.Body.Close() == nil && res.StatusCode == http.StatusOK
	})
	return string(text)
}
