package strictjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"flashsale/handler/strictjson"
)

// member is one member as the Reader saw it.
type member struct {
	name string
	kind strictjson.Kind
	text string
	raw  string
}

func readAll(data []byte) ([]member, error) {
	var all []member
	r := strictjson.Read(data)
	for r.Next() {
		v := r.Value()
		all = append(all, member{string(r.Name()), v.Kind(), string(v.Text()), string(v.Raw())})
	}
	return all, r.Err()
}

func nested(open string, n int) string { return `{"a":` + strings.Repeat(open, n) }

// documentError is a document, and the error with which it is refused; nil: it is accepted.
type documentError struct {
	doc  string
	want error
}

// manyNames is an object of 41 names, of which the last is given.
func manyNames(last string) string {
	var b strings.Builder
	b.WriteString("{")
	for i := range 40 {
		fmt.Fprintf(&b, `"n%d":%d,`, i, i)
	}
	return b.String() + `"` + last + `":1}`
}

// syntaxErrors are documents that are accepted, or empty, or no JSON.
var syntaxErrors = []documentError{
	{`{}`, nil},
	{" \t\r\n{ } \n", nil},
	{`{"a":1}`, nil},
	{`{"a" : [ 1 , {"b":[ ]} , "x" ] , "c":{}}`, nil},
	{`{"a":"\u0041\ud83d\ude00\/\b\f\n\r\t\"\\"}`, nil},
	{manyNames("other"), nil},
	{nested("[", 31) + strings.Repeat("]", 31) + "}", nil},

	{"", strictjson.ErrEmpty},
	{" \n", strictjson.ErrEmpty},

	{"\xef\xbb\xbf{}", strictjson.ErrSyntax},
	{`[1]`, strictjson.ErrSyntax},
	{`"x"`, strictjson.ErrSyntax},
	{`1`, strictjson.ErrSyntax},
	{`null`, strictjson.ErrSyntax},
	{`{`, strictjson.ErrSyntax},
	{`{"a"`, strictjson.ErrSyntax},
	{`{"a":`, strictjson.ErrSyntax},
	{`{"a":1`, strictjson.ErrSyntax},
	{`{"a":1,`, strictjson.ErrSyntax},
	{`{"a":1,}`, strictjson.ErrSyntax},
	{`{,}`, strictjson.ErrSyntax},
	{`{a:1}`, strictjson.ErrSyntax},
	{`{'a':1}`, strictjson.ErrSyntax},
	{`{"a" 1}`, strictjson.ErrSyntax},
	{`{"a":1 "b":2}`, strictjson.ErrSyntax},
	{`{"a":NaN}`, strictjson.ErrSyntax},
	{`{"a":Infinity}`, strictjson.ErrSyntax},
	{`{"a":0x1}`, strictjson.ErrSyntax},
	{`{"a":01}`, strictjson.ErrSyntax},
	{`{"a":-}`, strictjson.ErrSyntax},
	{`{"a":+1}`, strictjson.ErrSyntax},
	{`{"a":.5}`, strictjson.ErrSyntax},
	{`{"a":1.}`, strictjson.ErrSyntax},
	{`{"a":1e}`, strictjson.ErrSyntax},
	{`{"a":1e+}`, strictjson.ErrSyntax},
	{`{"a":tru}`, strictjson.ErrSyntax},
	{`{"a":truex}`, strictjson.ErrSyntax},
	{`{"a":[1,]}`, strictjson.ErrSyntax},
	{`{"a":[1}`, strictjson.ErrSyntax},
	{`{"a":[1}]`, strictjson.ErrSyntax},
	{`{"a":{"b"}}`, strictjson.ErrSyntax},
	{`{"a":{"b":1,}}`, strictjson.ErrSyntax},
	{`{"a":{1:2}}`, strictjson.ErrSyntax},
	{"{\"a\":\"\x00\"}", strictjson.ErrSyntax},
	{"{\"a\":\"\n\"}", strictjson.ErrSyntax},
	{"{\"a\":\"\\n\n\"}", strictjson.ErrSyntax},
	{"{\"a\":\"\xff\"}", strictjson.ErrSyntax},
	{"{\"a\":\"\xed\xa0\x80\"}", strictjson.ErrSyntax},
	{`{"a":"\x"}`, strictjson.ErrSyntax},
	{`{"a":"\u12"}`, strictjson.ErrSyntax},
	{`{"a":"\u12g4"}`, strictjson.ErrSyntax},
	{`{"a":"\ud800"}`, strictjson.ErrSyntax},
	{`{"a":"\udc00"}`, strictjson.ErrSyntax},
	{`{"a":"\ud800\ud800"}`, strictjson.ErrSyntax},
	{`{"a":"\ud800x"}`, strictjson.ErrSyntax},
	{`{"a":["\ud800"]}`, strictjson.ErrSyntax},
	{`{"a":"\`, strictjson.ErrSyntax},
	{`{"\ud800":1}`, strictjson.ErrSyntax},
}

// limitErrors are documents that are too deep, have trailing bytes, or repeat a name.
var limitErrors = []documentError{
	{nested("[", 32) + strings.Repeat("]", 32) + "}", strictjson.ErrTooDeep},
	{nested("[", 10_000), strictjson.ErrTooDeep},
	{nested(`{"a":`, 10_000), strictjson.ErrTooDeep},
	{strings.Repeat("[", 10_000), strictjson.ErrTooDeep},

	{`{} {}`, strictjson.ErrTrailing},
	{`{"a":1}}`, strictjson.ErrTrailing},
	{`{"a":1}x`, strictjson.ErrTrailing},
	{"{}\x00", strictjson.ErrTrailing},
	{`{"a":1,"a":1}{}`, strictjson.ErrTrailing},

	{`{"a":1,"a":1}`, strictjson.ErrDuplicate},
	{`{"a":1,"b":2,"\u0061":1}`, strictjson.ErrDuplicate},
	{manyNames("n3"), strictjson.ErrDuplicate},
	{manyNames("n39"), strictjson.ErrDuplicate},
	{`{"a":1,"a":1,}`, strictjson.ErrSyntax},
}

func TestReader_Err(t *testing.T) {
	t.Parallel()
	for _, tc := range slices.Concat(syntaxErrors, limitErrors) {
		_, err := readAll([]byte(tc.doc))
		if !errors.Is(err, tc.want) || !errors.Is(tc.want, strictjson.ErrTooDeep) && errors.Is(err, strictjson.ErrTooDeep) {
			t.Errorf("%.60q: got %v, want %v", tc.doc, err, tc.want)
		}
	}
	if !errors.Is(strictjson.ErrTooDeep, strictjson.ErrSyntax) {
		t.Error("ErrTooDeep is not a kind of ErrSyntax")
	}
}

func TestReader_Values(t *testing.T) {
	t.Parallel()
	got, err := readAll([]byte(`{"s":"a\u00e9\n","i":-7,"f":1.0,"e":1e0,"t":true,"n":null,"a":[1, 2],"o":{"x":{}},"":"","\u0062":0}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []member{
		{"s", strictjson.String, "aé\n", `"a\u00e9\n"`},
		{"i", strictjson.Integer, "", "-7"},
		{"f", strictjson.Fraction, "", "1.0"},
		{"e", strictjson.Fraction, "", "1e0"},
		{"t", strictjson.Bool, "", "true"},
		{"n", strictjson.Null, "", "null"},
		{"a", strictjson.Array, "", "[1, 2]"},
		{"o", strictjson.Object, "", `{"x":{}}`},
		{"", strictjson.String, "", `""`},
		{"b", strictjson.Integer, "", "0"},
	}
	if len(got) != len(want) {
		t.Fatalf("got %d members, want %d: %v", len(got), len(want), got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("member %d: got %+v, want %+v", i, got[i], want[i])
		}
	}
}

// first returns the value of the document {"v":…}.
func first(t *testing.T, value string) strictjson.Value {
	t.Helper()
	r := strictjson.Read([]byte(`{"v":` + value + `}`))
	var v strictjson.Value
	for r.Next() {
		v = r.Value()
	}
	if err := r.Err(); err != nil {
		t.Fatalf("%s: %v", value, err)
	}
	return v
}

func TestValue_Int(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]int64{
		"0": 0, "-0": 0, "1": 1, "-1": -1,
		"9223372036854775807":  math.MaxInt64,
		"9223372036854775808":  math.MaxInt64,
		"18446744073709551615": math.MaxInt64,
		"18446744073709551616": math.MaxInt64,
		"99999999999999999999": math.MaxInt64,
		"-9223372036854775807": -math.MaxInt64,
		"-9223372036854775808": math.MinInt64,
		"-9223372036854775809": math.MinInt64,
		"1.5":                  0,
		`"7"`:                  0,
	} {
		if got := first(t, value).Int(); got != want {
			t.Errorf("%s: got %d, want %d", value, got, want)
		}
	}
	if got := first(t, "1"+strings.Repeat("0", 3000)).Int(); got != math.MaxInt64 {
		t.Errorf("10^3000: got %d", got)
	}
}

func TestValue_Strings(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		`[]`: "true", `[ ]`: "true", `["a"]`: "a,true", `["a" , "\u0062"]`: "a,b,true",
		`["a",1]`: "a,false", `[1]`: "false", `"a"`: "false", `{}`: "false", `[["a"]]`: "false",
	} {
		var got []string
		ok := first(t, value).Strings(func(text []byte) { got = append(got, string(text)) })
		if s := strings.Join(append(got, fmt.Sprint(ok)), ","); s != want {
			t.Errorf("%s: got %s, want %s", value, s, want)
		}
	}
	if !first(t, "true").Bool() || first(t, "false").Bool() || first(t, `"true"`).Bool() {
		t.Error("Bool is wrong")
	}
}

// The usual documents cost no memory of their own. The race detector empties
// pools at random, so the best of many runs counts.
func TestReader_Allocs(t *testing.T) {
	doc := []byte(`{"sub":"alice","role":"buyer","aud":["flashsale"],"exp":1999999999}`)
	read := func() {
		r := strictjson.Read(doc)
		audience := 0
		for r.Next() {
			r.Value().Strings(func([]byte) { audience++ })
		}
		if r.Err() != nil || audience != 1 {
			t.Error(r.Err(), audience)
		}
	}
	least := math.Inf(1)
	for range 100 {
		least = min(least, testing.AllocsPerRun(1, read))
	}
	if least != 0 {
		t.Errorf("%v allocations, want none", least)
	}
}

// reference reads a document with the standard library, made strict by
// additional checks, and returns its members' names.
func reference(data []byte) (names []string, err error) {
	if len(bytes.Trim(data, " \t\r\n")) == 0 {
		return nil, strictjson.ErrEmpty
	}
	if !utf8.Valid(data) {
		return nil, strictjson.ErrSyntax
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	depth, isName := 0, false
	seen := map[string]bool{}
	duplicate := false
	for first := true; first || depth > 0; first = false {
		token, err := d.Token()
		if err != nil {
			return nil, strictjson.ErrSyntax
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			if first && token != json.Delim('{') {
				return nil, strictjson.ErrSyntax
			}
			if depth++; depth > strictjson.MaxDepth {
				return nil, strictjson.ErrTooDeep
			}
			isName = depth == 1
			continue
		case json.Delim('}'), json.Delim(']'):
			depth--
			isName = depth == 1
			continue
		}
		if first {
			return nil, strictjson.ErrSyntax
		}
		if depth == 1 {
			if isName {
				name := token.(string)
				duplicate = duplicate || seen[name]
				seen[name] = true
				names = append(names, name)
			}
			isName = !isName
		}
	}
	if halfSurrogate(data[:d.InputOffset()]) {
		return nil, strictjson.ErrSyntax
	}
	if len(bytes.Trim(data[d.InputOffset():], " \t\r\n")) > 0 {
		return nil, strictjson.ErrTrailing
	}
	if duplicate {
		return nil, strictjson.ErrDuplicate
	}
	return names, nil
}

var (
	surrogatePair = regexp.MustCompile(`(?i)\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}`)
	surrogateHalf = regexp.MustCompile(`(?i)\\ud[89a-f][0-9a-f]{2}`)
)

func halfSurrogate(data []byte) bool {
	data = bytes.ReplaceAll(data, []byte(`\\`), []byte(`__`))
	return surrogateHalf.Match(surrogatePair.ReplaceAll(data, []byte("____________")))
}

// FuzzReader holds the Reader against the standard library: it accepts what
// the strict reference accepts, refuses the rest for the same reason, and sees
// the same members.
func FuzzReader(f *testing.F) {
	for _, doc := range []string{
		`{"quantity":1}`, `{"quantity":1,"quantity":2}`, `{"a":[{"b":null}],"c":"\ud83d\ude00"}`, `{"a":"\ud800"}`,
		`{"a":1}{}`, `[1]`, `{"a":1e5,"b":-0.0}`, "{\"a\":\"\xff\"}", `{"a":{"a":1,"a":2}}`, "", nested("[", 40), `{"a\\u0061":1}`,
	} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		want, wantErr := reference(data)
		members, err := readAll(data)
		if !errors.Is(err, wantErr) {
			// The reference sees the end of the nesting only, not where in a
			// faulty document it was exceeded.
			if errors.Is(err, strictjson.ErrSyntax) && errors.Is(wantErr, strictjson.ErrSyntax) {
				return
			}
			t.Fatalf("%q: got %v, the reference says %v", data, err, wantErr)
		}
		if err != nil {
			return
		}
		if len(members) != len(want) {
			t.Fatalf("%q: %d members, the reference sees %d", data, len(members), len(want))
		}
		for i, m := range members {
			if m.name != want[i] {
				t.Fatalf("%q: member %d is %q, the reference says %q", data, i, m.name, want[i])
			}
			if !json.Valid([]byte(m.raw)) {
				t.Fatalf("%q: the raw value %q is not JSON", data, m.raw)
			}
		}
	})
}
