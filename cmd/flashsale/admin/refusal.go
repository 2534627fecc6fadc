package admin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"flashsale/cmd/flashsale/config"
)

// refusal is a problem answered by the API.
type refusal struct {
	status       int
	code, detail string
	fix          string // what else the user of the command may do; empty: the detail says it
}

// unavailable is the code of a refusal by an API whose Redis or database does not answer.
const unavailable = "unavailable"

func (r *refusal) Error() string {
	text := r.code + ": " + r.detail
	if r.fix != "" {
		text += " (" + r.fix + ")"
	}
	return text
}

// asked is what a command has sent to the API, for the words of a refusal.
type asked struct {
	server   string
	flags    *pflag.FlagSet // the command's; nil: none
	signed   bool           // the token is signed with the configured key, not given by --token
	argument string         // the command's argument, by its name in the usage; empty: none
}

// argumentOf returns the name of a command's argument in its usage: "TASK or ORDER" of
// "retry [TASK or ORDER ...]".
func argumentOf(c *cobra.Command) string {
	_, name, _ := strings.Cut(c.Use, " ")
	return strings.Trim(name, "[]. ")
}

// refused reads the problem in an answer. A refused value of a flag or an argument is a usage error.
// The error names flags and commands where the API names fields and routes, and its text has no
// control characters, which a terminal would obey.
func (a *asked) refused(res *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	var p struct{ Code, Detail, Param string }
	if json.Unmarshal(text, &p) != nil || p.Code == "" {
		status := res.Status
		if to := res.Header.Get("Location"); to != "" {
			status += ", a redirect to " + to
		}
		return a.foreign(status)
	}
	refused := &refusal{
		status: res.StatusCode, code: printable(p.Code), detail: printable(a.name(p.Param, p.Detail)),
		fix: a.fix(res.StatusCode, p.Code),
	}
	invalid := res.StatusCode == http.StatusBadRequest || res.StatusCode == http.StatusUnprocessableEntity
	switch {
	case invalid && a.flag(p.Param) != "":
		return config.Usage(refused)
	case invalid && p.Code == "id_invalid" && a.argument != "": // of the path, which has the argument
		refused.detail = "argument " + a.argument + ": " + refused.detail
		return config.Usage(refused)
	}
	return refused
}

// foreign is the error of an answer that the API does not give.
func (a *asked) foreign(answer string) error {
	return fmt.Errorf("%s answered %s; correct --server, which may name another service", a.server, printable(answer))
}

// fix is what the user of the command may do about a refusal that the API explains to its clients.
func (a *asked) fix(status int, code string) string {
	switch {
	case code == "item_not_found":
		return "flashsale item list shows the ids"
	case code == unavailable:
		return "flashsale doctor names the cause"
	case status == http.StatusUnauthorized && a.signed:
		return "the service checks tokens with other settings: give this command its --data-dir, FLASHSALE_JWT_SECRET or --config, or a --token"
	case status == http.StatusUnauthorized:
		return "correct --token; flashsale token --sub NAME --role admin signs one"
	case status == http.StatusForbidden:
		return "use the token of an admin; flashsale token --sub NAME --role admin signs one"
	}
	return ""
}

// flagNames are the flags for those of the API's fields that have another name.
var flagNames = map[string]string{
	"per_user_limit": "limit", "image_url": "image", "payment_window_seconds": "payment-window", "item_id": "item", "Idempotency-Key": "key",
}

// flag returns the flag of this command for a field of the API; "" if there is none.
func (a *asked) flag(field string) string {
	if field == "" || a.flags == nil {
		return ""
	}
	name, ok := flagNames[field]
	if !ok {
		name = strings.ReplaceAll(field, "_", "-")
	}
	if a.flags.Lookup(name) == nil {
		return ""
	}
	if strings.HasSuffix(field, "_seconds") {
		return "--" + name + " (in seconds)"
	}
	return "--" + name
}

// longField is a field whose name is no word of English.
var longField = regexp.MustCompile(`\b[a-z]+(?:_[a-z]+)+\b`)

// routeCommands are the commands for the routes that a refusal may name.
var routeCommands = strings.NewReplacer(
	"GET /v1/admin/dead/groups", "flashsale queue dead --groups",
	"GET /v1/admin/dead", "flashsale queue dead",
	"GET /v1/admin/payments", "flashsale payment list",
)

// name replaces the names of fields in a refusal by those of the flags that set them, and routes by
// commands; param is the field at fault.
func (a *asked) name(param, detail string) string {
	detail = longField.ReplaceAllStringFunc(detail, func(field string) string {
		return cmp.Or(a.flag(field), field)
	})
	if flag := a.flag(param); flag != "" && !strings.Contains(detail, flag) {
		if rest, ok := strings.CutPrefix(detail, param+" "); ok {
			detail = flag + " " + rest
		} else {
			detail = flag + ": " + detail
		}
	}
	return routeCommands.Replace(detail)
}
