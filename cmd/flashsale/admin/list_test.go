package admin

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestRemote_list reads pages up to the limit, and keeps fields that the program does not know.
func TestRemote_list(t *testing.T) {
	t.Parallel()
	const first, last = `200 {"things":[{"id":1,"new":true},{"id":2}],"next_cursor":"c1"}`, `200 {"things":[{"id":3}],"next_cursor":""}`
	for name, tc := range map[string]struct {
		limit   int
		answers []string
		want    []string
	}{
		"all":        {0, []string{first, last}, []string{`{"id":1,"new":true}`, `{"id":2}`, `{"id":3}`}},
		"first page": {1, []string{first}, []string{`{"id":1,"new":true}`}},
		"two pages":  {3, []string{first, last}, []string{`{"id":1,"new":true}`, `{"id":2}`, `{"id":3}`}},
		"none":       {0, []string{`200 {"things":[],"next_cursor":""}`}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &answers{t: t, list: tc.answers}
			r := &remote{asked: asked{server: "http://shop.test"}, client: http.Client{Transport: a}}
			entries, err := r.list(t.Context(), "/v1/things", "things", url.Values{"limit": {"7"}}, tc.limit)
			if err != nil || len(a.list) > 0 {
				t.Fatalf("%v, %d pages were not read", err, len(a.list))
			}
			got := make([]string, len(entries))
			for i := range entries {
				got[i] = string(entries[i])
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			var b strings.Builder
			if err := printJSON(&b, "things", entries); err != nil || b.String() != `{"things":[`+strings.Join(tc.want, ",")+"]}\n" {
				t.Errorf("%v, printed %s", err, b.String())
			}
		})
	}
}

// TestTables_Width: lines with the longest usual values fit into tableWidth, and a text of several lines
// stays in its line.
func TestTables_Width(t *testing.T) {
	t.Parallel()
	const id = "0197a0f2-3c4d-7abc-8def-0123456789ab"
	long := strings.Repeat("fulfil order: 数据库 is\nlocked ", 20)
	for name, rows := range map[string][][]string{
		"letters":  letterRows([]deadView{{Task: id, Queue: "expiries-0", Orders: 512, ItemID: "drop-1", DiedAt: "2026-01-02T03:04:05.678Z", Reason: long}}),
		"groups":   groupRows(&groupsView{Groups: []groupView{{ID: "3f2a91c07be4d815", Count: 10000, FirstAt: "2026-01-02T03:04:05.678Z", LastAt: "2026-01-02T03:04:05.678Z", Reason: long}}}),
		"items":    itemRows([]itemView{{ID: "drop-1", State: "scheduled", StockLeft: 100000, StockTotal: 100000, PerUserLimit: 10, PriceMinor: 129900, Currency: "EUR", ImageURL: "/images/2026/drop-1.jpg", Name: long}}),
		"payments": paymentRows([]paymentView{{ID: 1234, Outcome: "late", ReceivedAs: "late", AmountMinor: 4900, Currency: "EUR", OrderID: id, ItemID: "drop-1", Reference: "pay_1234567890", UserID: "alice", ReceivedAt: "2026-01-02T03:04:05.678Z"}}),
	} {
		var b strings.Builder
		if err := printTable(&b, rows); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		if len(lines) != 2 {
			t.Errorf("%s: %d lines", name, len(lines))
		}
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); n > tableWidth {
				t.Errorf("%s: a line has %d columns: %s", name, n, line)
			}
		}
	}
}
