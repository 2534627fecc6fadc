package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// honest returns a run in which n buyers wanted one unit each and the first
// `stock` of them got it, with rows and ledger that agree.
func honest(n, stock int) (*observations, []row, *ledger) {
	o := &observations{stock: int64(stock), limit: 1, quantity: 1}
	var rows []row
	for i := range n {
		w := wish{buyer: fmt.Sprintf("b%d", i), key: fmt.Sprintf("k%d", i)}
		if i < stock {
			w.orders = []string{fmt.Sprintf("o%d", i)}
			rows = append(rows, row{ID: w.orders[0], UserID: w.buyer, Quantity: 1, Price: priceMinor, Status: "confirmed", Key: w.key})
		} else {
			w.refused = "sold_out"
		}
		o.wishes = append(o.wishes, w)
	}
	sold := int64(len(rows))
	return o, rows, &ledger{Initial: o.stock, Left: o.stock - sold, Sold: sold, Balanced: true}
}

// verdictRun is a run that a test spoils.
type verdictRun struct {
	o    *observations
	rows []row
	l    *ledger
}

// verdictCase spoils an honest run of 20 buyers and 10 units; line is the verdict on it.
type verdictCase struct {
	name  string
	spoil func(w *verdictRun)
	line  string
}

func checkVerdicts(t *testing.T, tests []verdictCase) {
	t.Helper()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := &verdictRun{}
			w.o, w.rows, w.l = honest(20, 10)
			tt.spoil(w)
			v := judge(w.o, w.rows, w.l)
			if v.line() != tt.line {
				t.Errorf("got  %s\nwant %s\n%+v", v.line(), tt.line, v.Failures)
			}
			for _, f := range v.Failures {
				if f.Count < 1 || len(f.Examples) < 1 || len(f.Examples) > maxExamples {
					t.Errorf("failure %s has count %d and examples %q", f.Name, f.Count, f.Examples)
				}
			}
		})
	}
}

func TestVerdict_PassesARunThatKeptItsPromises(t *testing.T) {
	t.Parallel()
	checkVerdicts(t, []verdictCase{
		{"honest", func(*verdictRun) {}, "PASS accepted=10 persisted=10 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0"},
		{"a rejected row holds nothing", func(w *verdictRun) {
			w.rows = append(w.rows, row{ID: "o15", UserID: "b15", Quantity: 1, Price: priceMinor, Status: "rejected", Key: "k15"})
		}, "PASS accepted=10 persisted=10 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0"},
		{"an answer lost on the way is no failure", func(w *verdictRun) {
			w.o.wishes[3].orders = nil
		}, "PASS accepted=9 persisted=10 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0"},
	})
}

func TestVerdict_CountsBrokenPromises(t *testing.T) {
	t.Parallel()
	checkVerdicts(t, []verdictCase{
		{"oversold", func(w *verdictRun) {
			w.o.wishes[10].orders, w.o.wishes[10].refused = []string{"o10"}, ""
			w.rows = append(w.rows, row{ID: "o10", UserID: "b10", Quantity: 1, Price: priceMinor, Status: "confirmed", Key: "k10"})
			w.l.Left, w.l.Sold = -1, 11
		}, "FAIL accepted=11 persisted=11 oversold=1 lost=0 duplicated=0 over_limit=0 unsold=0 ledger=unbalanced"},
		{"lost", func(w *verdictRun) {
			w.rows = slices.Delete(w.rows, 2, 4)
			w.l.Left, w.l.Sold = 2, 8
		}, "FAIL accepted=10 persisted=8 oversold=0 lost=2 duplicated=0 over_limit=0 unsold=2"},
		{"acknowledged, then rejected", func(w *verdictRun) {
			w.rows[2].Status = "rejected"
			w.l.Left, w.l.Sold = 1, 9
		}, "FAIL accepted=10 persisted=9 oversold=0 lost=1 duplicated=0 over_limit=0 unsold=1"},
		{"two rows for a key", func(w *verdictRun) {
			w.rows[9] = row{ID: "o0-again", UserID: "b0", Quantity: 1, Price: priceMinor, Status: "confirmed", Key: "k0"}
			w.o.wishes[9].orders = nil
		}, "FAIL accepted=9 persisted=10 oversold=0 lost=0 duplicated=1 over_limit=1 unsold=0"},
		{"a key answered with two ids", func(w *verdictRun) {
			w.o.wishes[0].orders = []string{"o0", "o0-again"}
		}, "FAIL accepted=11 persisted=10 oversold=0 lost=1 duplicated=1 over_limit=0 unsold=0"},
		{"a key answered with one id and kept with another", func(w *verdictRun) {
			w.rows[0].ID = "other"
		}, "FAIL accepted=10 persisted=10 oversold=0 lost=1 duplicated=1 over_limit=0 unsold=0"},
		{"over the limit", func(w *verdictRun) {
			w.rows[1].UserID, w.o.wishes[1].buyer = "b0", "b0"
			w.o.wishes[11].buyer = "b1"
		}, "FAIL accepted=10 persisted=10 oversold=0 lost=0 duplicated=0 over_limit=1 unsold=0"},
		{"unsold", func(w *verdictRun) {
			w.rows = w.rows[:9]
			w.o.wishes[9].orders, w.o.wishes[9].refused = nil, "sold_out"
			w.l.Left, w.l.Sold = 1, 9
		}, "FAIL accepted=9 persisted=9 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=1"},
		{"nothing sold is not a pass", func(w *verdictRun) {
			w.rows = nil
			for i := range w.o.wishes {
				w.o.wishes[i].orders, w.o.wishes[i].refused = nil, ""
			}
			w.l.Left, w.l.Sold = 10, 0
		}, "FAIL accepted=0 persisted=0 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=10"},
	})
}

func TestVerdict_FindsRowsThatContradictTheAnswers(t *testing.T) {
	t.Parallel()
	checkVerdicts(t, []verdictCase{
		{"a row nobody asked for", func(w *verdictRun) {
			w.rows[9] = row{ID: "x", UserID: "stranger", Quantity: 1, Price: priceMinor, Status: "confirmed", Key: "kx"}
			w.o.wishes[9].orders = nil
		}, "FAIL accepted=9 persisted=10 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0 invented=1"},
		{"a row for another quantity", func(w *verdictRun) {
			w.rows = w.rows[:9]
			w.o.wishes[9].orders = nil
			w.rows[0].Quantity = 2
		}, "FAIL accepted=9 persisted=10 oversold=0 lost=0 duplicated=0 over_limit=1 unsold=0 invented=1"},
		{"a key with another buyer's row", func(w *verdictRun) {
			w.rows[0].UserID = "b12"
			w.o.wishes[0].orders = nil
		}, "FAIL accepted=9 persisted=10 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0 invented=1"},
		{"refused and sold", func(w *verdictRun) {
			w.o.wishes[0].orders, w.o.wishes[0].refused = nil, "sold_out"
		}, "FAIL accepted=9 persisted=10 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0 contradicted=1"},
		{"refused and acknowledged", func(w *verdictRun) {
			w.o.wishes[0].refused = "user_limit"
		}, "FAIL accepted=10 persisted=10 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0 contradicted=1"},
		{"one order for two keys", func(w *verdictRun) {
			w.o.wishes[11].orders, w.o.wishes[11].refused = []string{"o0"}, ""
		}, "FAIL accepted=10 persisted=10 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0 malformed=1"},
		{"a malformed acknowledgement", func(w *verdictRun) {
			w.o.wishes[0].fault = "another buyer's"
		}, "FAIL accepted=10 persisted=10 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0 malformed=1"},
	})
}

func TestVerdict_ComparesTheLedgerWithTheRows(t *testing.T) {
	t.Parallel()
	checkVerdicts(t, []verdictCase{
		{"no ledger", func(w *verdictRun) { w.l = nil },
			"FAIL accepted=10 persisted=10 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0 ledger=unbalanced"},
		{"ledger calls itself unbalanced", func(w *verdictRun) { w.l.Balanced = false },
			"FAIL accepted=10 persisted=10 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0 ledger=unbalanced"},
		{"ledger calls itself balanced and is not", func(w *verdictRun) { w.l.Left = 1 },
			"FAIL accepted=10 persisted=10 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0 ledger=unbalanced"},
		{"ledger balanced on other figures than the rows", func(w *verdictRun) { w.l.Left, w.l.Sold = 1, 9 },
			"FAIL accepted=10 persisted=10 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0 ledger=unbalanced"},
		{"ledger of another stock", func(w *verdictRun) { w.l.Initial, w.l.Left = 11, 1 },
			"FAIL accepted=10 persisted=10 oversold=0 lost=0 duplicated=0 over_limit=0 unsold=0 ledger=unbalanced"},
	})
}

// Rows read through the API have no keys. Failures that show without keys must be found.
func TestVerdict_WithoutKeys(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(o *observations, rows []row) []row
		word  string
		part  string
	}{
		{"honest", func(_ *observations, rows []row) []row { return rows }, "PASS", "duplicated=0"},
		{"an answer lost on the way", func(o *observations, rows []row) []row { o.wishes[3].orders = nil; return rows }, "PASS", "duplicated=0"},
		{"two answers to one buyer lost", func(o *observations, rows []row) []row {
			o.limit = 2
			o.wishes[1].buyer, rows[1].UserID = "b0", "b0"
			o.wishes[0].orders, o.wishes[1].orders = nil, nil
			return rows
		}, "PASS", "duplicated=0"},
		{"two rows for a buyer with one key", func(_ *observations, rows []row) []row {
			rows[9].UserID = "b0"
			return rows
		}, "FAIL", "duplicated=1"},
		{"a stranger's row", func(o *observations, rows []row) []row {
			rows[9].ID, rows[9].UserID = "x", "stranger"
			return rows
		}, "FAIL", "invented=1"},
		{"refused and sold", func(o *observations, rows []row) []row {
			o.wishes[0].orders, o.wishes[0].refused = nil, "sold_out"
			return rows
		}, "FAIL", "contradicted=1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o, rows, l := honest(20, 10)
			for i := range rows {
				rows[i].Key = ""
			}
			rows = tt.spoil(o, rows)
			v := judge(o, rows, l)
			if line := v.line(); !strings.HasPrefix(line, tt.word) || !strings.Contains(line, tt.part) {
				t.Errorf("%s; want %s with %s", line, tt.word, tt.part)
			}
		})
	}
}

func TestVerdict_Sellable(t *testing.T) {
	t.Parallel()
	tests := []struct {
		stock, limit, quantity int64
		wishes                 map[string]int // by buyer
		want                   int64
	}{
		{10, 1, 1, map[string]int{"a": 1, "b": 1}, 2},
		{1, 1, 1, map[string]int{"a": 1, "b": 1}, 1},
		{10, 1, 1, map[string]int{"a": 2, "b": 3}, 2},                 // the limit caps what a buyer may have
		{10, 5, 2, map[string]int{"a": 3}, 4},                         // two purchases of two fit a limit of five
		{11, 3, 3, map[string]int{"a": 1, "b": 1, "c": 1, "d": 1}, 9}, // three purchases of three fit eleven units
	}
	for _, tt := range tests {
		o := &observations{stock: tt.stock, limit: tt.limit, quantity: tt.quantity}
		for buyer, n := range tt.wishes {
			for i := range n {
				o.wishes = append(o.wishes, wish{buyer: buyer, key: fmt.Sprint(buyer, i)})
			}
		}
		if got := newJudge(o, nil).sellable(); got != tt.want {
			t.Errorf("%+v: got %d", tt, got)
		}
	}
}
