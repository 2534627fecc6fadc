package admin

import (
	"encoding/json"
	"strings"
	"testing"
)

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
