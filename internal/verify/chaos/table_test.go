//go:build chaos && unix

package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"flashsale/internal/verify/history"
)

// outcome is the result of a run; it is written as verdict.json.
type outcome struct {
	Fault   string `json:"fault"`
	Name    string `json:"name"`
	Seed    uint64 `json:"seed"`
	Round   int    `json:"round"`
	Engine  string `json:"engine"`
	DB      string `json:"db"`
	Verdict string `json:"verdict"` // passed, FAILED or void
	tally
	SetUp    float64          `json:"set_up_s"`
	Took     float64          `json:"took_s"`
	Void     []string         `json:"void,omitempty"`
	Failures []string         `json:"failures,omitempty"`
	Notes    []string         `json:"notes,omitempty"`
	Answers  map[string]int   `json:"answers"`
	Checker  *history.Verdict `json:"checker,omitempty"`
}

const (
	passed = "passed"
	failed = "FAILED"
	void   = "void"
)

// table collects the outcomes of all runs.
var table struct {
	mu   sync.Mutex
	rows []outcome
}

func (o *outcome) write(folder string) error {
	text, err := json.MarshalIndent(o, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "verdict.json"), append(text, '\n'), 0o600); err != nil {
		return err
	}
	table.mu.Lock()
	defer table.mu.Unlock()
	table.rows = append(table.rows, *o)
	// Written after each run, so that an interrupted suite leaves a table.
	return os.WriteFile(filepath.Join(results, "table.txt"), []byte(render(table.rows)), 0o600)
}

// render formats the table, one line for each run.
func render(rows []outcome) string {
	var b strings.Builder
	fmt.Fprintf(&b, "engine %s, database %s, first seed %d, %s\n\n", options.engine, options.db, options.seed, time.Now().UTC().Format(time.RFC3339))
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "FAULT\tVERDICT\tSEED\tCALLS\tBEFORE\tDURING\tAFTER\tSTRIKES\tUNKNOWN\tREDELIVERED\tRECOVERY\tLOST 202\tTOOK\tREMARKS")
	for i := range rows {
		o := &rows[i]
		lost := "-"
		if o.Checker != nil {
			lost = fmt.Sprint(o.Checker.Counts.LostAccepted)
		}
		remarks := append(append(append([]string(nil), o.Failures...), o.Void...), o.Notes...)
		if o.Checker != nil {
			for _, f := range o.Checker.Findings {
				remarks = append(remarks, fmt.Sprintf("%s=%d", f.Name, f.Count))
			}
		}
		fmt.Fprintf(w, "%s %s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%.0f s\t%s\n", o.Fault, o.Name, o.Verdict, o.Seed,
			o.Calls, o.Before, o.During, o.After, o.Strikes, o.Unknown, o.Redelivered, o.recovery(), lost, o.Took,
			strings.ReplaceAll(strings.Join(remarks, "; "), "\n", " "))
	}
	_ = w.Flush() //nolint:errcheck // a strings.Builder never fails
	return b.String()
}

// longest is the longest recovery time; 0: none was measured.
func (t *tally) longest() float64 {
	longest := 0.0
	for _, s := range t.Recovery {
		longest = max(longest, s)
	}
	return longest
}

func (t *tally) recovery() string {
	if len(t.Recovery) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f s", t.longest())
}
