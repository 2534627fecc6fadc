package admin

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"flashsale/cmd/flashsale/config"
)

// find returns a command by its path.
func find(t *testing.T, root *cobra.Command, words ...string) *cobra.Command {
	t.Helper()
	c, rest, err := root.Find(words)
	if err != nil || len(rest) > 0 {
		t.Fatalf("find %v: %v, %v", words, rest, err)
	}
	c.InheritedFlags() // adds those of its parents to its own
	return c
}

// A refusal names the flags that the user has typed, and commands instead of routes.
func TestAsked_refused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		command             *cobra.Command
		param, detail, want string
	}{
		{find(t, Item(), "create"), "per_user_limit", "per_user_limit must be from 1 to 1000000.", "--limit must be from 1 to 1000000."},
		{find(t, Item(), "create"), "payment_window_seconds", "payment_window_seconds must be from 0 to 2592000.", "--payment-window (in seconds) must be from 0 to 2592000."},
		{find(t, Item(), "create"), "closes_at", "closes_at must be after opens_at, which is now unless stated.", "--closes-at must be after --opens-at, which is now unless stated."},
		{find(t, Item(), "create"), "image_url", "image_url must be a path.", "--image must be a path."},
		{find(t, Item(), "create"), "name", "name must have 1 to 200 characters.", "--name must have 1 to 200 characters."},
		{find(t, Item(), "create"), "id", "An item id has 1 to 64 characters.", "--id: An item id has 1 to 64 characters."},
		{find(t, Item(), "change"), "price_minor", "price_minor must be from 0 to 9.", "--price-minor must be from 0 to 9."},
		{find(t, Item(), "change"), "item", "An item id has 1 to 64 characters.", "An item id has 1 to 64 characters."}, // an argument
		{find(t, Item(), "restock"), "quantity", "The item's stock_total would be too high.", "--quantity: The item's stock_total would be too high."},
		{find(t, Item(), "restock"), "Idempotency-Key", "An idempotency key has 1 to 255 characters.", "--key: An idempotency key has 1 to 255 characters."},
		{find(t, Queue(), "dead"), "group", "A group's id has 16 digits; GET /v1/admin/dead/groups lists them.", "--group: A group's id has 16 digits; flashsale queue dead --groups lists them."},
		{find(t, Queue(), "retry"), "", "No dead letter has this id; GET /v1/admin/dead lists them.", "No dead letter has this id; flashsale queue dead lists them."},
		{find(t, Queue(), "retry"), "before", "before is an RFC 3339 time.", "--before is an RFC 3339 time."},
		{find(t, Payment(), "list"), "outcome", "outcome is one of accepted, late.", "--outcome is one of accepted, late."},
		{find(t, Payment(), "refunded"), "", "No payment has this id; GET /v1/admin/payments lists them.", "No payment has this id; flashsale payment list lists them."},
		{Reconcile(), "item_id", "item_id names no item.", "--item names no item."},
		{Top(), "item", "item lists 1 to 20 ids of items.", "--item lists 1 to 20 ids of items."},
	} {
		body := fmt.Sprintf(`{"code":"field_range","param":%q,"detail":%q}`, tc.param, tc.detail)
		a := asked{"http://shop", tc.command.Flags(), false, argumentOf(tc.command)}
		err := a.refused(&http.Response{StatusCode: 422, Body: io.NopCloser(strings.NewReader(body))})
		if want := "field_range: " + tc.want; err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %q", tc.command.CommandPath(), err, want)
		}
	}
}

// A refused token, an unavailable service and another service are errors with a fix.
func TestAsked_refused_Fix(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status int
		code   string
		signed bool
		want   string
	}{
		{401, "token_signature", true, "--data-dir"},
		{401, "token_signature", false, "correct --token"},
		{403, "forbidden", false, "flashsale token --sub NAME --role admin"},
		{503, "unavailable", false, "flashsale doctor"},
		{404, "item_not_found", true, "flashsale item list"},
		{404, "", false, "correct --server"},
	} {
		a := asked{server: "http://shop", signed: tc.signed}
		err := a.refused(&http.Response{StatusCode: tc.status, Status: fmt.Sprint(tc.status), Body: io.NopCloser(strings.NewReader(`{"code":"` + tc.code + `"}`))})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%d %s: %v, want %q in it", tc.status, tc.code, err, tc.want)
		}
		var r *refusal
		if errors.As(err, &r) != (tc.code != "") {
			t.Errorf("%d %s: a %T", tc.status, tc.code, err)
		}
	}
}

// A value of a flag that the API refuses is a usage error, as one that the command refuses. A refusal
// for another reason is not.
func TestAsked_refused_Usage(t *testing.T) {
	t.Parallel()
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.Int64("limit", 1, "")
	for _, tc := range []struct {
		status int
		param  string
		usage  bool
	}{
		{422, "per_user_limit", true}, {400, "per_user_limit", true}, {409, "per_user_limit", false},
		{422, "stock", false}, {400, "", false}, {404, "", false},
	} {
		a := asked{server: "http://shop", flags: flags, signed: true}
		err := a.refused(&http.Response{StatusCode: tc.status, Body: io.NopCloser(strings.NewReader(`{"code":"field_range","param":"` + tc.param + `"}`))})
		var usage config.UsageError
		var refused *refusal
		if errors.As(err, &usage) != tc.usage || !errors.As(err, &refused) {
			t.Errorf("%d %q: a %T, usage error wanted: %v", tc.status, tc.param, err, tc.usage)
		}
	}
}

// A refused id is the command's argument, which the error names as the command's usage does.
func TestAsked_refused_Argument(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		command *cobra.Command
		want    string
	}{
		{find(t, Item(), "pause"), "argument ID: Text."},
		{find(t, Item(), "warm"), "argument ID: Text."},
		{find(t, Order(), "refund"), "argument ID: Text."},
		{find(t, Queue(), "dead"), "argument TASK or ORDER: Text."},
		{find(t, Queue(), "retry"), "argument TASK or ORDER: Text."},
		{find(t, Queue(), "discard"), "argument TASK or ORDER: Text."},
		{find(t, Queue(), "stats"), "Text."}, // it has none
	} {
		a := asked{server: "http://shop", flags: tc.command.Flags(), argument: argumentOf(tc.command)}
		err := a.refused(&http.Response{StatusCode: 400, Body: io.NopCloser(strings.NewReader(`{"code":"id_invalid","detail":"Text."}`))})
		var usage config.UsageError
		if err == nil || err.Error() != "id_invalid: "+tc.want || errors.As(err, &usage) != (a.argument != "") {
			t.Errorf("%s: a %T, %v; want %q", tc.command.CommandPath(), err, err, tc.want)
		}
	}
}

// Values that cannot be sent are refused before anything is sent, and name their flag.
func TestAccess_Refuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		command *cobra.Command
		args    []string
		want    string
	}{
		{Queue(), []string{"stats", "--token", "a\nb"}, "--token: it has a space, a line break"},
		{Queue(), []string{"stats", "--token", "a b"}, "--token: it has a space, a line break"},
		{Queue(), []string{"stats", "--token", ""}, `--token "": it is empty`},
		{Queue(), []string{"stats", "--server", "shop:8080"}, `--server "shop:8080": write a URL`},
		{Top(), []string{"--item", ""}, `--item "": it is empty`},
		{Queue(), []string{"stats", "--data-dir", ""}, "the flag --data-dir is empty"},
		{Queue(), []string{"stats", "--config", ""}, "the flag --config is empty"},
		{Queue(), []string{"stats", "--db", ""}, "the flag --db is empty"},
		{Queue(), []string{"discard", "--all", "--before", "yesterday"}, `--before "yesterday": write an RFC 3339 time`},
		{Queue(), []string{"discard", "--all", "--yes", "--before", "1999-12-31T23:59:59Z"}, `--before "1999-12-31T23:59:59Z": write an RFC 3339 time`},
		{Queue(), []string{"retry", "--group", "g", "--before", "2030-01-31"}, `--before "2030-01-31": write an RFC 3339 time`},
		{Queue(), []string{"retry", ""}, "queue retry has an empty argument"},
		{Queue(), []string{"discard", "x", ""}, "queue discard has an empty argument"},
		{Queue(), []string{"dead", ""}, "queue dead has an empty argument"},
		{Item(), []string{"warm", ""}, "item warm has an empty argument"},
	} {
		c := tc.command
		config.DefineFlags(c.PersistentFlags())
		c.SilenceErrors, c.SilenceUsage = true, true
		c.SetArgs(tc.args)
		var usage config.UsageError
		if err := c.ExecuteContext(t.Context()); !errors.As(err, &usage) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want a usage error with %q", tc.args, err, tc.want)
		}
	}
}

// An API that is not available at the start has answered, and says why.
func TestTop_Unavailable(t *testing.T) {
	t.Parallel()
	src := source(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"code":"unavailable","detail":"Temporarily unavailable."}`)
	})
	err := src.print(t.Context(), io.Discard, io.Discard, plainLine)
	if err == nil || !strings.HasPrefix(err.Error(), "unavailable: Temporarily unavailable.") {
		t.Errorf("%v, want the refusal", err)
	}
}
