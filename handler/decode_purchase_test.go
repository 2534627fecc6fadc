package handler

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/handler/problem"
)

func TestPlainPurchase(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int64{
		`{"quantity":1}`: 1, `{"quantity": 1}`: 1, `{"quantity":999999999}`: 999999999,
		`{"quantity":1000000000}`: -1, `{"quantity":0}`: -1, `{"quantity":01}`: -1, `{"quantity":}`: -1, `{"quantity": }`: -1,
		`{"quantity":-1}`: -1, `{"quantity":1.0}`: -1, `{"quantity":1 }`: -1, `{"quantity":  1}`: -1, `{"quantity":1`: -1, ``: -1,
	} {
		got, ok := plainPurchase([]byte(body))
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("%s: got %d, %t; want %d", body, got, ok, want)
		}
	}
}

// FuzzItemID: for any id the answer is a problem or an order.
func FuzzItemID(f *testing.F) {
	for _, id := range []string{"thing", "-thing", "Thing", "th ing", "..", "%00", "{a}", strings.Repeat("a", 65), "thing/x", "ｔhing"} {
		f.Add(id)
	}
	s := open(f)
	token := bearer(f, "alice", auth.RoleBuyer)
	f.Fuzz(func(t *testing.T, id string) {
		target := "/v1/items/" + url.PathEscape(id) + "/orders"
		r := httptest.NewRequest("POST", target, strings.NewReader(`{"quantity":1}`))
		r.Header.Set("Authorization", token)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", "k")
		w := s.do(r)
		switch {
		case id == "thing":
			if w.Code != 201 {
				t.Fatalf("%q: %d %s", id, w.Code, w.Body)
			}
		case catalog.ValidID(id):
			wantProblem(t, w.Result(), 404, "item_not_found")
		default:
			wantProblem(t, w.Result(), 400, "id_invalid")
		}
	})
}

// Each sentinel error has an answer, and each answer a code that the metrics have.
func TestErrorTable(t *testing.T) {
	t.Parallel()
	counted := problem.Statuses()
	for _, row := range errorTable {
		if row.answer.Status < 400 || row.answer.Code == "" || row.answer.Detail == "" {
			t.Errorf("%v has the answer %+v", row.err, row.answer)
		}
		if counted[row.answer.Code] == 0 {
			t.Errorf("the code %s is not counted", row.answer.Code)
		}
		if body := row.answer.AppendBody(nil, "x"); !json.Valid(body) {
			t.Errorf("%v: the body is not JSON: %s", row.err, body)
		}
	}
	if p := lookUp(errors.New("other")); p != nil {
		t.Errorf("an unknown error has the answer %s", p.Code)
	}
}
