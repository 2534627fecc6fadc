package pages

import (
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"flashsale/web"
)

// LanguageCookie is the cookie with the language that a reader has chosen.
const LanguageCookie = "flashsale_lang"

// Language has the texts of the shop's pages in one language. Every language has the same keys; a
// test compares them.
type Language struct {
	Code  string // as in the attribute lang
	texts map[string]string
	// scripts are results of ScriptTexts, one for each template that calls it.
	scripts sync.Map
}

// languages are the files of web/lang by the code in their names. The first is the default.
var languages = sync.OnceValue(func() []*Language {
	var all []*Language
	for _, code := range []string{"en", "zh"} {
		data, err := web.Files.ReadFile(path.Join("lang", code+".json"))
		l := &Language{Code: code}
		if err == nil {
			err = json.Unmarshal(data, &l.texts)
		}
		if err != nil {
			panic("pages: " + code + ": " + err.Error()) // the files are part of the program
		}
		all = append(all, l)
	}
	return all
})

// LanguageOf returns the language of a request: the reader's choice, or the one that the browser
// prefers.
func LanguageOf(r *http.Request) *Language {
	if c, err := r.Cookie(LanguageCookie); err == nil {
		if l := LanguageNamed(c.Value); l != nil {
			return l
		}
	}
	best, weight := languages()[0], 0.0
	for one := range strings.SplitSeq(r.Header.Get("Accept-Language"), ",") {
		name, params, _ := strings.Cut(one, ";")
		name, _, _ = strings.Cut(strings.TrimSpace(name), "-")
		q := 1.0
		if text, given := strings.CutPrefix(strings.TrimSpace(params), "q="); given {
			var err error
			if q, err = strconv.ParseFloat(text, 64); err != nil {
				continue
			}
		}
		if l := LanguageNamed(strings.ToLower(name)); l != nil && q > weight {
			best, weight = l, q
		}
	}
	return best
}

// Languages returns all languages, the default first.
func Languages() []*Language { return languages() }

// LanguageNamed returns the language with the code, or nil.
func LanguageNamed(code string) *Language {
	for _, l := range languages() {
		if l.Code == code {
			return l
		}
	}
	return nil
}

// T returns a text, with the arguments in place of its verbs.
func (l *Language) T(key string, args ...any) string {
	text, ok := l.texts[key]
	if !ok {
		panic("pages: no text has the key " + key)
	}
	if len(args) == 0 {
		return text
	}
	return fmt.Sprintf(text, args...)
}

// Has reports whether there is a text with the key.
func (l *Language) Has(key string) bool { _, ok := l.texts[key]; return ok }

// ScriptTexts are the texts whose keys begin with one of the prefixes and a dot, for the modules: a JSON
// object, which is encoded once.
func (l *Language) ScriptTexts(prefixes ...string) (template.JS, error) {
	name := strings.Join(prefixes, " ")
	if known, ok := l.scripts.Load(name); ok {
		return known.(template.JS), nil
	}
	texts := make(map[string]string)
	for key, text := range l.texts {
		prefix, _, _ := strings.Cut(key, ".")
		if slices.Contains(prefixes, prefix) {
			texts[key] = text
		}
	}
	encoded, err := json.Marshal(texts) // which escapes <, > and &
	if err != nil {
		return "", err
	}
	l.scripts.Store(name, template.JS(encoded))
	return template.JS(encoded), nil
}

// Duration writes a number of seconds in the largest unit of which it has at least two, rounded up.
func (l *Language) Duration(seconds int64) string {
	switch {
	case seconds < 2*60:
		return l.T("unit.seconds", seconds)
	case seconds < 2*3600:
		return l.T("unit.minutes", (seconds+59)/60)
	case seconds < 2*24*3600:
		return l.T("unit.hours", (seconds+3599)/3600)
	default:
		return l.T("unit.days", (seconds+24*3600-1)/(24*3600))
	}
}

// ProblemTitle returns the title of a refusal: that of its code and parameter, else that of its code,
// else fallback.
func (l *Language) ProblemTitle(code, param, fallback string) string {
	return l.or("problem."+code+"."+param+".title", l.or("problem."+code+".title", fallback))
}

// ProblemText returns the explanation of a refusal in the same way.
func (l *Language) ProblemText(code, param, fallback string) string {
	return l.or("problem."+code+"."+param, l.or("problem."+code, fallback))
}

func (l *Language) or(key, fallback string) string {
	if text, ok := l.texts[key]; ok {
		return text
	}
	return fallback
}
