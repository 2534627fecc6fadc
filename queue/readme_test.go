package queue_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestREADME_Conformance: each row of the table names tests, and they exist.
func TestREADME_Conformance(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*_test.go")
	must(t, err)
	var sources strings.Builder
	for _, name := range files {
		text, err := os.ReadFile(name)
		must(t, err)
		sources.Write(text)
	}
	readme, err := os.ReadFile("README.md")
	must(t, err)
	_, table, found := strings.Cut(string(readme), "| behaviour | this library |")
	table, _, ended := strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	if !found || !ended || len(rows) < 20 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, row := range rows[2:] {
		tests := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(row, -1)
		if len(tests) == 0 {
			t.Errorf("no test: %s", row)
		}
		for _, name := range tests {
			if !strings.Contains(sources.String(), "func "+name[1]+"(t *testing.T)") {
				t.Errorf("%s does not exist", name[1])
			}
		}
	}
}
