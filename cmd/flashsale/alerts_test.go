//go:build unix

package main_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/process"
	"flashsale/internal/testing/prometheus"
)

const (
	// alertJob is the job of the processes that a test's Prometheus scrapes.
	alertJob = "flashsale"
	// alertSoon bounds the wait for an alert. The oldest order must be 30 s old, and some
	// figures are measured twice a minute.
	alertSoon = 3 * time.Minute
	// alertEvery is the pause between two looks at Prometheus, which evaluates every 2 s.
	alertEvery = 500 * time.Millisecond
)

// hasten are the times and sizes that tests do not wait for. Each is in the rules.
var hasten = map[string]string{
	"[5m]":        "[20s]",     // windows of rates
	"[2m]":        "[20s]",     // the same
	"[15m]":       "[5s]",      // rounds in which an item cannot be examined
	"> 900":       "> 10",      // seconds without a reconciliation; age of a webhook event
	"> 268435456": "> 1000000", // bytes of the write-ahead log
	// The rule must see the disk of its test, and not that of the machine.
	"< 10737418240": "< 8388608", // bytes free
}

// often makes an API reconcile every second, because the tests shorten the time after which it is
// overdue.
var often = append([]string{"--reconcile-every", "1s"}, noLimit...)

var forTime = regexp.MustCompile(`(?m)^(\s+for:) .*$`)

// watched is a shop whose processes a real Prometheus scrapes. It evaluates the rules of
// deploy/grafana, with shorter times.
type watched struct {
	*shop
	prom *prometheus.Server
	all  int // processes
}

func (s *shop) watch(processes ...*process.P) *watched {
	s.t.Helper()
	raw, err := os.ReadFile(alertRules)
	if err != nil {
		s.t.Fatal(err)
	}
	rules := forTime.ReplaceAllString(string(raw), "$1 1s")
	for from, to := range hasten {
		if !strings.Contains(rules, from) {
			s.t.Fatalf("the rules do not have %q", from)
		}
		rules = strings.ReplaceAll(rules, from, to)
	}
	targets := make([]string, len(processes))
	for i, p := range processes {
		targets[i] = p.Spec().OpsAddr
	}
	return &watched{s, prometheus.Start(s.t, prometheus.Config{Rules: rules, Job: alertJob, Targets: targets}), len(processes)}
}

// alerts returns the firing alerts, by name and instance or queue.
func (w *watched) alerts() map[string]prometheus.Alert {
	firing := make(map[string]prometheus.Alert)
	for _, a := range w.prom.Alerts() {
		if a.State == "firing" {
			firing[strings.TrimSpace(a.Name()+" "+a.Labels["instance"]+a.Labels["queue"]+" "+a.Labels["part"])] = a
		}
	}
	return firing
}

// until waits for a state of Prometheus. The second result of ok describes it, for the message.
func (w *watched) until(what string, ok func() (bool, any)) {
	w.t.Helper()
	began := time.Now()
	limit := time.NewTimer(alertSoon)
	defer limit.Stop()
	tick := time.NewTicker(alertEvery)
	defer tick.Stop()
	for {
		good, saw := ok()
		if good {
			w.t.Logf("%s after %v", what, time.Since(began).Round(time.Second))
			return
		}
		select {
		case <-tick.C:
		case <-limit.C:
			w.t.Fatalf("%s: not within %v; last seen: %+v", what, alertSoon, saw)
		}
	}
}

// calm waits until all processes have been scraped several times and no alert is pending or
// firing.
func (w *watched) calm() {
	w.t.Helper()
	scraped := fmt.Sprintf(`count(count_over_time(up{job=%q}[1m]) >= 4) == %d`, alertJob, w.all)
	w.until("no alert of a healthy service", func() (bool, any) {
		alerts := w.prom.Alerts()
		return len(alerts) == 0 && len(w.prom.Query(scraped)) == 1, alerts
	})
	if n := w.prom.Rules(); n != len(prometheus.ReadRules(w.t, alertRules)) {
		w.t.Fatalf("prometheus evaluates %d rules", n)
	}
}

// fire waits until all these alerts fire. An alert is given by its name and, where it has any,
// its instance or queue and its part. meanwhile is called before each look; it may be nil.
func (w *watched) fire(meanwhile func(), names ...string) {
	w.t.Helper()
	for _, name := range names {
		var a prometheus.Alert
		w.until(name+" fires", func() (bool, any) {
			if meanwhile != nil {
				meanwhile()
			}
			firing := w.alerts()
			var found bool
			a, found = firing[name]
			return found, firing
		})
		w.t.Logf("%s: %s", name, a.Annotations["description"])
		if d := a.Annotations["description"]; d == "" || strings.Contains(d, "<no value>") || strings.Contains(d, "error") {
			w.t.Errorf("%s: description %q", name, d)
		}
	}
}

// end waits until no alert is pending or firing.
func (w *watched) end() {
	w.t.Helper()
	w.until("no alert any more", func() (bool, any) {
		alerts := w.prom.Alerts()
		return len(alerts) == 0, alerts
	})
}

// alertTests cause the condition of each alert, wait for the alert, do what docs/runbook.md
// says, and wait for the alert's end. The keys name the alerts that must fire.
var alertTests = map[string]func(t *testing.T){
	"FlashsaleDown FlashsaleOrdersNotCommitted FlashsaleOrdersWaiting FlashsalePurchasesRefused": alertsWorkerKilled,
	"FlashsaleRedisUnreachable FlashsaleReconcileStalled":                                        alertsRedisKilled,
	"FlashsaleNotReady FlashsalePurchasesSlow":                                                   alertsDatabaseLocked,
	"FlashsaleDeadLetters":      alertsPoison,
	"FlashsaleLedgerDiffers":    alertsLedgerDamaged,
	"FlashsaleReconcileStalled": alertsSaleOverwritten,
	"FlashsaleRefundsWaiting":   alertsMismatch,
	"FlashsaleWebhooksFailing":  alertsReceiverFails,
	"FlashsaleSalesStopped":     alertsRestored,
	"FlashsaleServerErrors":     alertsTableLost,
	"FlashsaleRedisMemory":      alertsRedisFull,
	"FlashsaleDatabaseDisk":     alertsDiskFull,
}

// Each alert fires in a real Prometheus when its condition occurs in a real service, and ends
// after the steps of the runbook.
func TestAlerts_FireAndEnd_Long(t *testing.T) {
	longtest.Only(t)
	needProcesses(t)
	tested := make(map[string]bool)
	for names, run := range alertTests {
		for name := range strings.FieldsSeq(names) {
			tested[name] = true
		}
		t.Run(strings.Fields(names)[0], func(t *testing.T) {
			t.Parallel()
			run(t)
		})
	}
	for _, r := range prometheus.ReadRules(t, alertRules) {
		if !tested[r.Alert] {
			t.Errorf("no test causes the condition of %s", r.Alert)
		}
		delete(tested, r.Alert)
	}
	if len(tested) > 0 {
		t.Errorf("there are no alerts %v", maps.Collect(maps.All(tested)))
	}
}

// alertsWorkerKilled kills the only worker, while buyers fill the queue.
func alertsWorkerKilled(t *testing.T) {
	s := newRedisShop(t)
	api, worker := s.api(append(often, "--queue-limit", "20")...), s.worker("--queue-limit", "20")
	c := dial(t, api)
	item := s.newItem(c, 100_000, 1)
	only(t, []purchase{c.buy(item, "first", "k", untilCommitted...)}, "201")
	w := s.watch(api, worker)
	w.calm()
	worker.Kill()
	n := 0
	buy := func() {
		n++
		p := c.buy(item, fmt.Sprint("u", n), "k", "Prefer", "respond-async")
		only(t, []purchase{p}, "202", "503 overloaded")
	}
	w.fire(buy, "FlashsaleDown "+worker.Spec().OpsAddr, "FlashsaleOrdersNotCommitted", "FlashsaleOrdersWaiting orders-0", "FlashsalePurchasesRefused")
	wantCode(t, 1, squeezed(s.run("doctor")), "fix workers")
	if r := s.run("queue", "stats", "--server", api.URL()); !strings.Contains(r.Output, "orders-0") {
		t.Errorf("queue stats: %s", r.Output)
	}
	eventually(t, "the log of the API", soon, func() (bool, any) { return strings.Contains(api.Log(), alarmText), api.Log() })
	process.Start(t, worker.Spec())
	w.end()
	eventually(t, "the log of the API", soon, func() (bool, any) { return strings.Contains(api.Log(), calmText), api.Log() })
	if l := s.ledger(c, item); l.Held != 0 || !l.Balanced {
		t.Errorf("ledger in the end: %+v", l)
	}
}

// alertsRedisKilled kills Redis and starts it again.
func alertsRedisKilled(t *testing.T) {
	s := newRedisShop(t)
	api, worker := s.api(often...), s.worker()
	c := dial(t, api)
	item := s.newItem(c, 100, 1)
	only(t, []purchase{c.buy(item, "first", "k", untilCommitted...)}, "201")
	w := s.watch(api, worker)
	w.calm()
	if err := s.server.Kill(); err != nil {
		t.Fatal(err)
	}
	n := 0
	buy := func() {
		n++
		only(t, []purchase{c.buy(item, fmt.Sprint("u", n), "k")}, "503 unavailable")
	}
	w.fire(buy, "FlashsaleRedisUnreachable "+api.Spec().OpsAddr, "FlashsalePurchasesRefused", "FlashsaleReconcileStalled")
	w.fire(nil, "FlashsaleRedisUnreachable "+worker.Spec().OpsAddr)
	wantCode(t, 1, squeezed(s.run("doctor")), "fix redis", "does not answer")
	if err := s.server.Start(); err != nil {
		t.Fatal(err)
	}
	w.end()
	only(t, []purchase{c.settle(item, c.buy(item, "last", "k", untilCommitted...))}, "201")
	wantCode(t, 0, s.run("reconcile", "--server", api.URL()))
}

// alertsDatabaseLocked holds the database's lock, so that purchases wait for their commit in
// vain.
func alertsDatabaseLocked(t *testing.T) {
	s := newRedisShop(t)
	api, worker := s.api(often...), s.worker()
	c := dial(t, api)
	item := s.newItem(c, 100, 1)
	only(t, []purchase{c.buy(item, "first", "k", untilCommitted...)}, "201")
	w := s.watch(api, worker)
	w.calm()
	unlock := s.lockDatabase()
	got := crowd(10, func(i int) purchase { return c.buy(item, fmt.Sprint("u", i), "k") })
	only(t, got, "202")
	w.fire(nil, "FlashsalePurchasesSlow", "FlashsaleNotReady "+api.Spec().OpsAddr+" database", "FlashsaleNotReady "+worker.Spec().OpsAddr+" database")
	if text := api.Log(); !strings.Contains(text, `"message":"not ready"`) || !strings.Contains(text, "database is busy") {
		t.Errorf("the log of the API:\n%s", text)
	}
	unlock()
	w.end()
	if rows := s.audit(c, item, 1, got); len(rows) != 11 {
		t.Errorf("%d rows, want 11", len(rows))
	}
}
