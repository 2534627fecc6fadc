package handler

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"flashsale/handler/auth"
	"flashsale/handler/encode"
)

// Creating and changing items follow the same rule. The refusal names the field and the
// character.
func TestItem_HiddenTextIsRefused(t *testing.T) {
	t.Parallel()
	s := open(t)
	create := func(name, description string) *httptest.ResponseRecorder {
		return s.send(t, "POST", "/v1/admin/items", "root", auth.RoleAdmin, fmt.Sprintf(
			`{"id":"new","name":%s,"description":%s,"price_minor":1,"currency":"EUR","stock":1}`, quoted(name), quoted(description)))
	}
	change := func(field, value string) *httptest.ResponseRecorder {
		return s.send(t, "PATCH", thingPath, "root", auth.RoleAdmin, fmt.Sprintf(`{%q:%s}`, field, quoted(value)), "If-Match", "*")
	}
	for _, r := range []rune{0x202e, 0x200b, 0x2066, 0x200f, 0xfeff, 0x2028, 0x200d, 0x3164} {
		text := "cheap" + string(r) + "txt"
		for name, w := range map[string]*httptest.ResponseRecorder{
			"name": create(text, "d"), "description": create("n", text),
			"name changed": change("name", text), "description changed": change("description", text),
		} {
			body := wantProblem(t, w.Result(), 422, "field_range")
			field, _, _ := strings.Cut(name, " ")
			detail, ok := body["detail"].(string)
			if !ok || body["param"] != field || !strings.Contains(detail, fmt.Sprintf("%U", r)) || !strings.Contains(detail, "remove it") {
				t.Errorf("%s with %U: param %v, detail %q", name, r, body["param"], detail)
			}
		}
	}
	if w := create("Über 👩🏽\u200d🚀", "می\u200cخواهم\r\n\t❤\ufe0f"); w.Code != 201 {
		t.Errorf("good texts: %d %s", w.Code, w.Body)
	}
	if w := change("description", "two\nlines"); w.Code != 200 {
		t.Errorf("a good change: %d %s", w.Code, w.Body)
	}
	for text, want := range map[string]int{strings.Repeat("ü", maxName): 201, strings.Repeat("ü", maxName+1): 422, "": 422} {
		if w := create(text, ""); w.Code != want {
			t.Errorf("a name of %d characters: %d", utf8.RuneCountInString(text), w.Code)
		}
	}
}

// quoted is a text as JSON, each character as it is.
func quoted(text string) string { return string(encode.String(nil, text)) }
