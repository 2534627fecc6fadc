package request

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"flashsale/handler/problem"
)

// A syntax error precedes an unknown field, that a wrong type, and that a missing field.
func TestFields_FirstFault(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]*problem.Problem{
		`{"name":"n","stock":1}`:                nil,
		`{"name":"n"}`:                          ErrFieldMissing,
		`{"name":1}`:                            ErrFieldType,
		`{"name":1,"zeta":1}`:                   errUnknownField,
		`{"zeta":1,"zeta":1}`:                   errJSONDuplicate,
		`{"name":1,"zeta":1}x`:                  errJSONTrailing,
		`{"name":1,"zeta":1`:                    errJSONInvalid,
		``:                                      errBodyMissing,
		`{"name":"n","stock":"1"}`:              ErrFieldType,
		`{"name":"n","stock":1,"a":7}`:          errUnknownField,
		`{"name":"n","stock":1,"tags":["a",1]}`: ErrFieldType,
	} {
		f := ReadFields([]byte(body))
		f.Text("name", true)
		f.Integer("stock", true, 0)
		f.Strings("tags")
		var got *problem.Problem
		if errors.As(f.Done(), &got); (got == nil) != (want == nil) || got != nil && got.Code != want.Code {
			t.Errorf("%s: %v, want %v", body, got, want)
		}
	}
}

// The refusal of a member that is named twice names it.
func TestFields_DuplicateIsNamed(t *testing.T) {
	t.Parallel()
	many := "{"
	for i := range 40 {
		many += fmt.Sprintf(`"m%d":1,`, i)
	}
	for body, param := range map[string]string{
		`{"a":1,"b":1,"b":2,"a":2}`: "b", `{"zeta":1,"\u007aeta":1}`: "zeta", many + `"m39":1,"m0":1}`: "m39", `{"":1,"":1}`: "",
	} {
		var got *problem.Problem
		if !errors.As(ReadFields([]byte(body)).Done(), &got) || got.Code != errJSONDuplicate.Code || got.Param != param {
			t.Errorf("%s: %+v, want the param %q", body, got, param)
		}
	}
}

func TestFields_Values(t *testing.T) {
	t.Parallel()
	f := ReadFields([]byte(`{"name":"n","stock":-7,"open":true,"end":null,"tags":["a","b"],"id":1}`))
	f.Know("id")
	if got := f.Text("name", true); got != "n" {
		t.Errorf("name = %q", got)
	}
	if got := f.Integer("stock", false, 1); got != -7 {
		t.Errorf("stock = %d", got)
	}
	if got := f.Integer("limit", false, 3); got != 3 {
		t.Errorf("limit = %d, want the fallback", got)
	}
	if value, given := f.Bool("open", false); !value || !given {
		t.Errorf("open = %t, given %t", value, given)
	}
	if text, given := f.OptionalText("end"); text != "" || given {
		t.Errorf("end = %q, given %t", text, given)
	}
	if tags, given := f.Strings("tags"); !given || !slices.Equal(tags, []string{"a", "b"}) {
		t.Errorf("tags = %q, given %t", tags, given)
	}
	if f.TextIfStated("note") != nil || f.IntegerIfStated("price") != nil {
		t.Error("a missing member has a value")
	}
	if err := f.Done(); err != nil || f.Empty() || !f.Has("id") || f.Has("price") {
		t.Errorf("%v, empty %t", err, f.Empty())
	}
}

func TestTruncate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text string
		n    int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"aä", 2, "a"}, {"😀", 3, ""}, {"", 0, ""}} {
		if got := truncate(tc.text, tc.n); got != tc.want {
			t.Errorf("truncate(%q, %d) = %q, want %q", tc.text, tc.n, got, tc.want)
		}
	}
}
