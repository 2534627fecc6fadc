package pages

import (
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"flashsale/catalog"
	"flashsale/order"
	"flashsale/web"
)

// The texts whose keys are put together from a prefix and a value. handler's tests compare the codes of
// problems with the refusals of the service.
var composed = map[string][]string{
	"state.": {
		string(catalog.StateScheduled), string(catalog.StateOpen), string(catalog.StatePaused), string(catalog.StateSoldOut), string(catalog.StateClosed),
	},
	"buy.": {string(catalog.StateScheduled), string(catalog.StatePaused), string(catalog.StateSoldOut), string(catalog.StateClosed)},
	"status.": {
		string(order.StatusQueued), string(order.StatusConfirmed), string(order.StatusPaid), string(order.StatusRefunded),
		string(order.StatusCancelled), string(order.StatusExpired), string(order.StatusRejected),
	},
	"order.is_": {
		string(order.StatusQueued), string(order.StatusConfirmed), string(order.StatusPaid), string(order.StatusRefunded),
		string(order.StatusCancelled), string(order.StatusExpired), string(order.StatusRejected),
	},
	"step.": {"received", "confirmed", "paid", "refunded", "cancelled", "expired", "rejected"},
	"reason.": {
		order.ReasonSoldOut, order.ReasonUserLimit, order.ReasonNoItem, order.ReasonDuplicate, order.ReasonFailed,
		order.ReasonBuyer, order.ReasonAdmin, order.ReasonUnpaid, order.ReasonRecovered,
	},
	"problem.": nil,
}

var (
	// usedInTemplate matches a key in a template: {{.T "key"}} and {{$.T (print "prefix." .Value)}}.
	usedInTemplate = regexp.MustCompile(`\.T \(?(?:print )?"([a-z_.]+)"`)
	// usedInModule matches a key in a module: t("key") and t(`prefix.${value}`).
	usedInModule = regexp.MustCompile("\\b(?:t|hasText)\\((?:[^()`]*\\? )?[\"`]([a-z_.]+)")
	// alternative matches the second key of t(a ? "key" : "key").
	alternative = regexp.MustCompile(`\bt\([^()]*\? "[a-z_.]+" : "([a-z_.]+)"`)
	usedInCode  = regexp.MustCompile(`\.(?:T|or)\("([a-z_.]+)"`)
	textVerb    = regexp.MustCompile(`%.`)
)

// usedKeys returns the keys in the shop's templates and modules, and in this package.
func usedKeys(t *testing.T) map[string]bool {
	t.Helper()
	used := make(map[string]bool)
	scan := func(text string, patterns ...*regexp.Regexp) {
		for _, p := range patterns {
			for _, m := range p.FindAllStringSubmatch(text, -1) {
				used[m[1]] = true
			}
		}
	}
	for pattern, expressions := range map[string][]*regexp.Regexp{
		"shop/*.html": {usedInTemplate}, "assets/shop*.js": {usedInModule, alternative},
	} {
		names, err := fs.Glob(web.Files, pattern)
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %v, %v", pattern, names, err)
		}
		for _, name := range names {
			text, err := web.Files.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			scan(string(text), expressions...)
		}
	}
	for _, name := range []string{"language.go", "shop.go"} {
		text, err := fs.ReadFile(sources, name)
		if err != nil {
			t.Fatal(err)
		}
		scan(string(text), usedInCode)
	}
	return used
}

// Given the files of the languages, then all have the same keys, and the same verbs in each text.
func TestTexts_AllLanguagesHaveTheSame(t *testing.T) {
	t.Parallel()
	first := Languages()[0]
	for _, l := range Languages()[1:] {
		for key := range first.texts {
			if !l.Has(key) {
				t.Errorf("%s has no text %s", l.Code, key)
				continue
			}
			if want, got := textVerb.FindAllString(first.texts[key], -1), textVerb.FindAllString(l.texts[key], -1); !slices.Equal(want, got) {
				t.Errorf("%s: %s has the verbs %v, want %v", l.Code, key, got, want)
			}
		}
		for key := range l.texts {
			if !first.Has(key) {
				t.Errorf("%s has no text %s", first.Code, key)
			}
		}
	}
}

// Given the templates and the modules, then every text that they use exists, and every text is used.
func TestTexts_AllAreUsed(t *testing.T) {
	t.Parallel()
	used := usedKeys(t)
	for prefix, values := range composed {
		if prefix != "problem." && prefix != "buy." && !used[prefix] {
			t.Errorf("no page uses %s", prefix)
		}
		delete(used, prefix)
		for _, v := range values {
			used[prefix+v] = true
		}
	}
	l := Languages()[0]
	for _, key := range slices.Sorted(maps.Keys(used)) {
		if !l.Has(key) {
			t.Errorf("a page uses %s, which does not exist", key)
		}
	}
	for key := range l.texts {
		if !used[key] && !strings.HasPrefix(key, "problem.") {
			t.Errorf("no page uses %s", key)
		}
	}
}

// Given a module, then its page sends it all texts that it uses.
func TestTexts_PagesSendWhatTheirModulesUse(t *testing.T) {
	t.Parallel()
	sent := regexp.MustCompile(`\.ScriptTexts ([^}]*)`)
	for page, modules := range map[string][]string{
		"items": {"shop-items.js", "shop.js"}, "item": {"shop-item.js", "shop-buy.js", "shop.js"}, "order": {"shop-order.js", "shop.js"},
	} {
		html, err := web.Files.ReadFile("shop/" + page + ".html")
		if err != nil {
			t.Fatal(err)
		}
		prefixes := sent.FindStringSubmatch(string(html))
		if prefixes == nil {
			t.Fatalf("%s sends no texts", page)
		}
		for _, module := range modules {
			text, err := web.Files.ReadFile("assets/" + module)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range usedInModule.FindAllStringSubmatch(string(text), -1) {
				prefix, _, _ := strings.Cut(m[1], ".")
				if !strings.Contains(prefixes[1], `"`+prefix+`"`) {
					t.Errorf("%s uses %s, which %s.html does not send", module, m[1], page)
				}
			}
		}
	}
}

func TestLanguage_Duration(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[int64]string{
		1: "1 s", 119: "119 s", 120: "2 min", 121: "3 min", 7199: "120 min", 7200: "2 h", 172800: "2 days", 172801: "3 days",
	} {
		if got := LanguageNamed("en").Duration(seconds); got != want {
			t.Errorf("%d: %s, want %s", seconds, got, want)
		}
	}
}

func TestLanguageNamed_Unknown(t *testing.T) {
	t.Parallel()
	if l := LanguageNamed("xx"); l != nil {
		t.Errorf("xx is %s", l.Code)
	}
}
