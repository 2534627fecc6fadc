package admin

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"flashsale/cmd/flashsale/config"
)

// A repair that leaves a sale stopped says so, and names the command that ends the stop.
func TestReconcile_RepairOfStoppedSale(t *testing.T) {
	t.Parallel()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write([]byte(`{"balanced":false,"examined":1,"differing":1,"items":[{"item_id":"drop-1","drifts":[{"kind":"database_old","expected":7,"found":5}]}]}`))
		if err != nil {
			t.Error(err)
		}
	}))
	defer api.Close()
	c := Reconcile()
	config.DefineFlags(c.PersistentFlags())
	c.SilenceErrors, c.SilenceUsage = true, true
	var out strings.Builder
	c.SetOut(&out)
	c.SetArgs([]string{"--repair", "--server", api.URL, "--token", "t"})
	err := c.ExecuteContext(t.Context())
	if !errors.Is(err, errDiffers) || !strings.Contains(err.Error(), "flashsale recover --from") {
		t.Errorf("%v, want that the counts differ, and the command recover", err)
	}
	if !strings.Contains(out.String(), "drop-1: database_old: expected 7, found 5") {
		t.Errorf("it printed:\n%s", &out)
	}
}

// A repair does not end the stop of a sale, so no error may suggest one for it.
func TestReconcileView_Fix(t *testing.T) {
	t.Parallel()
	for items, want := range map[string]string{
		`[{"drifts":[{"kind":"database_old"}]}, {}]`:                           "flashsale recover --from",
		`[{"drifts":[{"kind":"database_old"}]}, {"drifts":[{"kind":"left"}]}]`: "--repair",
		`[{"drifts":[{"kind":"left"}]}, {"drifts":[{"kind":"database_old"}]}]`: "--repair",
	} {
		var v reconcileView
		if err := json.Unmarshal([]byte(`{"items":`+items+`}`), &v); err != nil {
			t.Fatal(err)
		}
		if got := v.fix(); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", items, got, want)
		}
	}
}
