package order

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"flashsale/inventory/accepted"
)

// text draws a field's value: any visible characters, as the API accepts them.
func text(t *rapid.T, label string) string {
	return rapid.StringMatching(`[!-~]{0,40}`).Draw(t, label)
}

// process draws the name of an API process, which is hexadecimal.
func process(t *rapid.T) string {
	return rapid.StringMatching(`([0-9a-f]{12}|[0-9a-f]{16})?`).Draw(t, "origin")
}

// requestID draws a request id of a process or of a client, or none.
func requestID(t *rapid.T, process string) string {
	return rapid.OneOf(rapid.StringMatching(`[0-9A-Za-z._-]{0,64}`), rapid.StringMatching(process+`-[0-9a-z]{0,5}`)).Draw(t, "request")
}

func TestTask_RoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		origin := process(t)
		want := Task{
			ID: text(t, "id"), ItemID: text(t, "item"), UserID: text(t, "user"),
			Quantity: rapid.Int64().Draw(t, "quantity"), UnitPriceMinor: rapid.Int64().Draw(t, "price"),
			Currency: text(t, "currency"), CreatedAt: rapid.Int64().Draw(t, "created"),
			Origin: origin, RequestID: requestID(t, origin), Trace: rapid.StringMatching(`([0-9a-f]{48})?`).Draw(t, "trace"),
			IdempotencyKey: text(t, "key"),
		}
		// It appends, so earlier content stays.
		b := AppendTask([]byte("before"), &want)
		got, err := ParseAccepted(accepted.Order{OrderID: want.ID, Payload: strings.TrimPrefix(string(b), "before")})
		if err != nil || got != want {
			t.Fatalf("%q became %+v, %v, want %+v", b, got, err, want)
		}
		if waited := Awaited(want.Payload()); waited != (want.Origin != "") {
			t.Fatalf("%q: awaited %v", b, waited)
		}
		// The version before splits a payload at its tabs and takes the eighth field as it is.
		if fields := strings.Split(want.Payload(), "\t"); len(fields) != taskFields || fields[8] != want.IdempotencyKey || fields[6] != fmt.Sprint(want.CreatedAt) {
			t.Fatalf("the version before reads %q", fields)
		}
	})
}

// TestTask_Source: the forms of the field about the request, of which the first two are also those of
// earlier versions. A request id that the process has generated costs only its number.
func TestTask_Source(t *testing.T) {
	t.Parallel()
	const process, trace = "0123456789ab", "4bf92f3577b34da6a3ce929d0e0e473600f067aa0ba902b7"
	for field, want := range map[string]Task{
		"":                            {},
		process:                       {Origin: process},
		process + "-1z":               {Origin: process, RequestID: process + "-1z"},
		process + "/order.7":          {Origin: process, RequestID: "order.7"},
		process + "/a-b":              {Origin: process, RequestID: "a-b"},
		process + "/" + process + "-": {Origin: process, RequestID: process + "-"},
		"~" + process + "-1z":         {RequestID: process + "-1z"},
		process + "-1z;" + trace:      {Origin: process, RequestID: process + "-1z", Trace: trace},
		"~order.7;" + trace:           {RequestID: "order.7", Trace: trace},
		";" + trace:                   {Trace: trace},
	} {
		if got := string(appendSource(nil, &want)); got != field {
			t.Errorf("%+v is written %q, want %q", want, got, field)
		}
		var got Task
		if err := got.parseSource(field); err != nil || got != want {
			t.Errorf("%q became %+v, %v, want %+v", field, got, err, want)
		}
	}
	for _, field := range []string{
		"~", ";", process + ";", process + "/", process + "-", "-1z", "/a",
		process + "/" + process + "-1z", "~;" + trace,
	} {
		var got Task
		if err := got.parseSource(field); !errors.Is(err, ErrTaskMalformed) {
			t.Errorf("%q became %+v, %v", field, got, err)
		}
	}
}

func TestParseAccepted_Errors(t *testing.T) {
	t.Parallel()
	good := string(AppendTask(nil, &Task{ItemID: "i", UserID: "u", Quantity: 1, UnitPriceMinor: 2, Currency: "EUR", CreatedAt: 3, Origin: "o", IdempotencyKey: "k"}))
	if _, err := ParseAccepted(accepted.Order{OrderID: "id", Payload: good}); err != nil {
		t.Fatal(err)
	}
	fields := strings.Split(good, "\t")
	bad := []string{"", "1", "\t\t\t\t\t\t\t\t", "{}", strings.Join(fields[:8], "\t")}
	for i, value := range map[int]string{0: "3", 3: "one", 4: "1.5", 6: ""} {
		f := slices.Clone(fields)
		f[i] = value
		bad = append(bad, strings.Join(f, "\t"))
	}
	for _, quantity := range []string{"9223372036854775808", "+1", "01", "-0", "00", "1_0", " 1", ""} {
		bad = append(bad, strings.Replace(good, "\t1\t", "\t"+quantity+"\t", 1))
	}
	for _, stamp := range []string{"\t", "\t1", "\t1.", "\t.1", "\t1.2.3", "\t1.2\t", "\tx.1", "\t+1.2", "\t1.02"} {
		bad = append(bad, good+stamp)
	}
	bad = append(bad, "1"+strings.TrimPrefix(good, taskVersion)+"\t1.2") // older ones had no stamp
	for i := 1; i < taskFields; i++ {                                    // Postgres stores no NUL and no invalid UTF-8
		for _, value := range []string{"a\x00", "a\xff", "a\xed\xa0\x80"} {
			f := slices.Clone(fields)
			f[i] = value
			bad = append(bad, strings.Join(f, "\t"))
		}
	}
	longest := good + strings.Repeat("k", maxPayload-len(good))
	if _, err := ParseAccepted(accepted.Order{OrderID: "id", Payload: longest}); err != nil {
		t.Errorf("%d bytes: %v", len(longest), err)
	}
	bad = append(bad, longest+"k")
	for _, payload := range bad {
		if got, err := ParseAccepted(accepted.Order{OrderID: "id", Payload: payload}); !errors.Is(err, ErrTaskMalformed) {
			t.Errorf("%q became %+v, %v, want errTaskMalformed", payload, got, err)
		}
	}
	for id, want := range map[string]string{"a\x00": "NUL", "a\xff": "UTF-8"} {
		if _, err := ParseAccepted(accepted.Order{OrderID: id, Payload: good}); !errors.Is(err, ErrTaskMalformed) || !strings.Contains(err.Error(), want) {
			t.Errorf("id %q: %v", id, err)
		}
	}
}

// FuzzParseAccepted: a payload that can be parsed has only one form, so two readers of a queue
// cannot parse different orders from it.
func FuzzParseAccepted(f *testing.F) {
	f.Add([]byte("1\titem\tuser\t1\t100\tEUR\t1790000000000\torigin\tkey"))
	f.Add([]byte("1\titem\tuser\t-9223372036854775808\t9223372036854775807\t\t0\t\t\t\t"))
	f.Add([]byte("1\t\t\t\t\t\t\t\t"))
	f.Add([]byte("2\titem\tuser\t1\t100\tEUR\t1790000000000\torigin\tkey\t1790000000.1048577"))
	f.Add([]byte("2\titem\tuser\t1\t100\tEUR\t1790000000000\t0123456789ab-1z;4bf92f3577b34da6\tkey\t1.2"))
	f.Add([]byte("2\titem\tuser\t1\t100\tEUR\t1790000000000\t0123456789ab/client-7\tkey"))
	f.Add([]byte("2\titem\tuser\t1\t100\tEUR\t1790000000000\t~client-7\tkey"))
	f.Add([]byte("2\titem"))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, payload []byte) {
		waited := Awaited(string(payload)) // must not panic on any input
		got, err := ParseAccepted(accepted.Order{OrderID: "id", Payload: string(payload)})
		if err != nil {
			if !errors.Is(err, ErrTaskMalformed) || got != (Task{}) {
				t.Fatalf("%q: %+v, %v", payload, got, err)
			}
			return
		}
		if waited != (got.Origin != "") {
			t.Fatalf("%q: awaited %v, and its origin is %q", payload, waited, got.Origin)
		}
		written := AppendTask(nil, &got)
		written[0] = payload[0] // an older version is written as the present one
		if bytes.Count(payload, []byte("	")) == taskFields {
			written = fmt.Appendf(written, "	%d.%d", got.Epoch, got.Sequence) // the purchase script adds this
		}
		if !bytes.Equal(written, payload) {
			t.Fatalf("%q became %+v, which is written %q", payload, got, written)
		}
	})
}

func TestNotices_RoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := make([]Notice, rapid.IntRange(0, 20).Draw(t, "lines"))
		var message []byte
		at := rapid.Int64().Draw(t, "committed at")
		if at != 0 {
			message = AppendCommittedAt(message, at)
		}
		for i := range want {
			// An id begins with a letter or a digit.
			want[i] = Notice{ID: "i" + text(t, "id"), CommittedAt: at, Outcome: Outcome{
				Status:      rapid.SampledFrom([]Status{StatusConfirmed, StatusRejected}).Draw(t, "status"),
				Reason:      rapid.SampledFrom([]string{"", ReasonSoldOut, ReasonUserLimit, ReasonNoItem, ReasonDuplicate}).Draw(t, "reason"),
				ConfirmedAt: rapid.Int64().Draw(t, "confirmed"), ExpiresAt: rapid.Int64().Draw(t, "expires"), ClosedAt: rapid.Int64().Draw(t, "closed"),
			}}
			message = AppendNotice(message, &want[i])
		}
		var got []Notice
		if err := ParseNotices(string(message), func(n Notice) { got = append(got, n) }); err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want) || len(want) > 0 && !slices.Equal(got, want) {
			t.Fatalf("%q became %+v, want %+v", message, got, want)
		}
	})
}

func FuzzParseNotices(f *testing.F) {
	f.Add("id confirmed  1 2 3\nid2 rejected sold_out 0 0 5\n")
	f.Add("id confirmed  1 2")
	f.Add("@1790000000000000\nid confirmed  1 2 3\n")
	f.Add("\n \n")
	f.Fuzz(func(t *testing.T, message string) {
		var got []Notice
		if err := ParseNotices(message, func(n Notice) { got = append(got, n) }); err != nil {
			if !errors.Is(err, ErrNoticeMalformed) {
				t.Fatalf("%q: %v", message, err)
			}
			return
		}
		var again []byte
		for i := range got {
			again = AppendNotice(AppendCommittedAt(again, got[i].CommittedAt), &got[i])
		}
		var second []Notice
		if err := ParseNotices(string(again), func(n Notice) { second = append(second, n) }); err != nil || !slices.Equal(got, second) {
			t.Fatalf("%q became %+v, and that %+v, %v", message, got, second, err)
		}
	})
}

func TestParseNotices_Errors(t *testing.T) {
	t.Parallel()
	for _, m := range []string{"@", "@x\n", "@ 1\n", "id", "id confirmed  1 2", "id confirmed  1 2 x", "id confirmed  1 2 3 4", "\n"} {
		called := 0
		err := ParseNotices(m, func(Notice) { called++ })
		if !errors.Is(err, ErrNoticeMalformed) || called != 0 {
			t.Errorf("%q: %v after %d notices", m, err, called)
		}
	}
	// The lines before a broken one are still parsed.
	var ids []string
	err := ParseNotices("a confirmed  1 0 0\nbroken\n", func(n Notice) { ids = append(ids, n.ID) })
	if !errors.Is(err, ErrNoticeMalformed) || fmt.Sprint(ids) != "[a]" {
		t.Errorf("parsed %v, %v", ids, err)
	}
}
