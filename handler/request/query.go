package request

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"flashsale/handler/problem"
)

// Query has the parameters of a request, each at most once.
type Query struct{ url.Values }

// ReadQuery reads the parameters with the known names. It refuses others, because a misspelled
// one must not silently widen a list or a repair, and parameters that occur twice.
func ReadQuery(r *http.Request, known []string) (Query, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return Query{}, malformed(r.URL.RawQuery)
	}
	for name, all := range values {
		if len(all) != 1 {
			return Query{}, ErrParameter.With(truncate(name, maxParam), "The parameter was sent more than once; send it once.")
		}
		if !slices.Contains(known, name) {
			takes := "The route takes no parameters."
			if len(known) > 0 {
				takes = "The route takes " + strings.Join(known, ", ") + "."
			}
			return Query{}, errUnknownParameter.With(truncate(name, maxParam), takes)
		}
	}
	return Query{values}, nil
}

// malformed returns the refusal of a query that cannot be parsed. It names the first parameter at
// fault, as it was sent.
func malformed(query string) *problem.Problem {
	for one := range strings.SplitSeq(query, "&") {
		if _, err := url.ParseQuery(one); err == nil {
			continue
		}
		name, _, _ := strings.Cut(one, "=")
		return ErrParameter.With(truncate(name, maxParam),
			"The parameter is malformed: % must be followed by two hexadecimal digits; write a percent sign as %25 and a semicolon as %3B.")
	}
	return ErrParameter
}

// PickQuery reads the parameters with the known names and ignores others: links to pages carry
// parameters of newsletters and advertisements.
func PickQuery(r *http.Request, known []string) Query {
	all := r.URL.Query()
	picked := Query{url.Values{}}
	for _, name := range known {
		if all.Has(name) {
			picked.Set(name, all.Get(name))
		}
	}
	return picked
}

// The length of a page, in entries.
const (
	DefaultPage = 20
	MaxPage     = 100
)

// Limit reads the parameter limit: the length of a page.
func (q Query) Limit() (int, error) {
	if !q.Has("limit") {
		return DefaultPage, nil
	}
	n, err := strconv.Atoi(q.Get("limit"))
	if err != nil || n < 1 || n > MaxPage || strconv.Itoa(n) != q.Get("limit") {
		return 0, errLimit
	}
	return n, nil
}

// ID reads an optional parameter that is an id.
func (q Query) ID(name string, valid func(string) bool, refusal *problem.Problem) (string, error) {
	value := q.Get(name)
	if q.Has(name) && !valid(value) {
		return "", refusal.With(name, refusal.Detail)
	}
	return value, nil
}

// Switch reads a parameter that is true or false, with fallback as the default.
func (q Query) Switch(name string, fallback bool) (bool, error) {
	switch q.Get(name) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	default:
		if q.Has(name) {
			return false, ErrParameter.With(name, name+" is true or false.")
		}
		return fallback, nil
	}
}

// Choice reads an optional parameter that is one of a few words.
func Choice[T ~string](q Query, name string, choices []T) (T, error) {
	value := T(q.Get(name))
	if q.Has(name) && !slices.Contains(choices, value) {
		var words []string
		for _, c := range choices {
			words = append(words, string(c))
		}
		return "", ErrParameter.With(name, name+" is one of "+strings.Join(words, ", ")+".")
	}
	return value, nil
}
