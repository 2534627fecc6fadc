package history

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
)

func TestRecorder_WritesWhatIsRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.jsonl")
	r, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	const clients, each = 16, 200
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			for i := range each {
				c := Call{
					Client: client, Op: Buy, User: "u", Item: "lamp", Quantity: 1, Key: fmt.Sprintf("k%d", i), Async: true, Start: r.Now(),
					Status: 503, Code: "unavailable", Order: "o", State: Queued, Replayed: true, RetryAfter: 1, Err: "a \"quoted\"\nline",
				}
				c.End = r.Now()
				r.Record(&c)
			}
		})
	}
	all.Wait()
	if n := r.Count(); n != clients*each {
		t.Errorf("%d calls counted, want %d", n, clients*each)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	calls, err := ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	next := make([]int, clients)
	for _, c := range calls {
		want := Call{
			Client: c.Client, Op: Buy, User: "u", Item: "lamp", Quantity: 1, Key: fmt.Sprintf("k%d", next[c.Client]), Async: true, Start: c.Start, End: c.End,
			Status: 503, Code: "unavailable", Order: "o", State: Queued, Replayed: true, RetryAfter: 1, Err: "a \"quoted\"\nline",
		}
		if c != want {
			t.Fatalf("read %+v, written was %+v", c, want)
		}
		next[c.Client]++
	}
	if len(calls) != clients*each {
		t.Errorf("%d calls read, want %d", len(calls), clients*each)
	}
	if _, err := Create(path); !errors.Is(err, os.ErrExist) {
		t.Errorf("a history was to be written over another: %v", err)
	}
	if r.Record(&Call{}); r.Flush() == nil {
		t.Error("a call was recorded after the end")
	}
}

// full is a disk with room for n bytes.
type full struct{ n int }

var errFull = errors.New("disk full")

func (f *full) Write(p []byte) (int, error) {
	if f.n -= len(p); f.n < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestRecorder_DiskFull(t *testing.T) {
	t.Parallel()
	r := NewRecorder(&full{n: 1 << 20})
	for range 20_000 {
		r.Record(&Call{Op: Buy, User: "u", Item: "lamp", Quantity: 1, Key: "k"})
	}
	if n := r.Count(); n == 0 || n >= 20_000 {
		t.Errorf("%d calls counted on a disk for some of 20000", n)
	}
	if err := r.Flush(); !errors.Is(err, errFull) {
		t.Errorf("flush: %v", err)
	}
	if err := r.Close(); !errors.Is(err, errFull) {
		t.Errorf("close: %v", err)
	}
}

// broken is a file whose disk fails.
type broken struct{ text io.Reader }

func (b broken) Read(p []byte) (int, error) {
	if n, err := b.text.Read(p); err == nil {
		return n, nil
	}
	return 0, io.ErrClosedPipe
}

func TestRead_NamesFileAndLine(t *testing.T) {
	t.Parallel()
	const right = `{"client":1,"op":"get","item":"lamp","start_ns":1,"end_ns":2,"status":200}` + "\n"
	for _, c := range []struct{ name, line, want string }{
		{"not JSON", "x\n", "invalid character"},
		{"empty", "\n", "EOF"},
		{"cut off", `{"client":1`, "cut off"},
		{"unknown field", strings.Replace(right, "client", "customer", 1), `unknown field "customer"`},
		{"two on a line", strings.TrimSpace(right) + right, "something follows"},
		{"unknown operation", strings.Replace(right, "get", "steal", 1), "op"},
		{"time goes back", strings.Replace(right, `"end_ns":2`, `"end_ns":0`, 1), "end_ns"},
		{"status", strings.Replace(right, "200", "2000", 1), "status"},
		{"purchase without a key", `{"op":"buy","user":"u","item":"lamp","quantity":1}` + "\n", "key"},
		{"purchase without a quantity", `{"op":"buy","user":"u","item":"lamp","key":"k"}` + "\n", "quantity"},
		{"purchase without a user", `{"op":"buy","item":"lamp","key":"k","quantity":1}` + "\n", "user"},
		{"too long", `{"op":"` + strings.Repeat("x", maxLine) + `"}` + "\n", "longer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			calls, err := Read(strings.NewReader(right+right+c.line+right), "run/history.jsonl")
			if c.name == "cut off" {
				calls, err = Read(strings.NewReader(right+right+c.line), "run/history.jsonl")
			}
			if !errors.Is(err, ErrDamaged) || calls != nil {
				t.Fatalf("want ErrDamaged, got %v and %d calls", err, len(calls))
			}
			if !strings.Contains(err.Error(), "run/history.jsonl:3: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error names neither place nor cause: %v", err)
			}
		})
	}
	if _, err := Read(broken{strings.NewReader(right)}, "history.jsonl"); !errors.Is(err, io.ErrClosedPipe) || errors.Is(err, ErrDamaged) {
		t.Errorf("a failing disk: %v", err)
	}
	if calls, err := Read(strings.NewReader(right+right), "history.jsonl"); err != nil || len(calls) != 2 {
		t.Errorf("a right history: %d calls, %v", len(calls), err)
	}
	if _, err := ReadFile(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestFinal_WrittenAndRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "final.json")
	want := good().final
	want.Dead, want.AcceptedMayBeLost = []string{"d"}, true
	want.Items[0].Restocked, want.Orders[0].Reason = 1, "buyer"
	if err := WriteFinal(path, &want); err != nil {
		t.Fatal(err)
	}
	got, err := ReadFinal(path)
	if err != nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("read %+v, %v; written was %+v", got, err, want)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(text, []byte(`"orders"`), []byte(`"rows"`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFinal(path); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) {
		t.Errorf("a damaged file: %v", err)
	}
	if _, err := ReadFinal(path + ".none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := WriteFinal(filepath.Join(path, "below"), &want); err == nil {
		t.Error("a file was written below a file")
	}
}

func TestVerdict_Line(t *testing.T) {
	t.Parallel()
	r := good()
	v := Check(r.calls, &r.final)
	want := "PASS calls=7 accepted=3 confirmed=3 rows=3 rejected=0 unknown=1 replays=3 sold_out=1 lost_accepted=0 forgotten=0 dead=0 internal=0"
	if got := v.Line(); got != want {
		t.Errorf("the line is\n%s, want\n%s", got, want)
	}
	r.lamp().Ledger = nil
	r.of("a").Status = Queued
	v = Check(r.calls, &r.final)
	if got := v.Line(); !strings.HasPrefix(got, "FAIL malformed:1 lost_confirmed:1 unsold:1 redis_left:1 ledger:1 | calls=7 ") {
		t.Errorf("the line is %s", got)
	}
	// Each example names the client, the key and the order, so that the case can be found.
	for _, f := range v.Findings {
		if f.Name != LostConfirmed {
			continue
		}
		for _, part := range []string{"client 0", "key k", "order a", "user alice"} {
			if !strings.Contains(f.Examples[0], part) {
				t.Errorf("the example does not name %s: %s", part, f.Examples[0])
			}
		}
	}
	for range 5 {
		r.row("x", "mallory", Confirmed)
	}
	v = Check(r.calls, &r.final)
	for _, f := range v.Findings {
		if f.Name == Invented && (f.Count != 5 || len(f.Examples) != maxExamples) {
			t.Errorf("5 cases are reported as %+v", f)
		}
	}
}
