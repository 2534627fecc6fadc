package admin

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// A command line without required flags gets the names of all of them at once.
func TestItemCreate_NamesMissingFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"": "item create needs --id, --name, --price-minor, --stock, --payment-window (",
		"--id a --price-minor 1 --payment-window none": "item create needs --name, --stock; see",
		"--id a --name A --price-minor 1 --stock 1":    "item create needs --payment-window (",
	} {
		c := Item()
		c.SilenceErrors, c.SilenceUsage = true, true
		c.SetOut(io.Discard)
		c.SetArgs(append([]string{"create"}, strings.Fields(args)...))
		if err := c.Execute(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("item create %s: %v, want %q", args, err, want)
		}
	}
}

// Only a refusal because Redis or the database does not answer leads to the doctor.
func TestRefusal_NamesDoctor(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{"unavailable": true, "item_not_found": false} {
		err := &refusal{code: code, detail: "Text.", fix: (&asked{}).fix(http.StatusServiceUnavailable, code)}
		if got := strings.Contains(err.Error(), "flashsale doctor"); got != want {
			t.Errorf("%v, names the doctor: %v, want %v", err, got, want)
		}
	}
}
