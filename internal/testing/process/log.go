//go:build unix

package process

import (
	"fmt"
	"os"
	"strings"
)

// tailLines is how much of a log a failed test shows: a panic's message and the first
// goroutine, without hiding the test's own message.
const tailLines = 60

// LogPath is the file that receives both output streams of the process.
func (p *P) LogPath() string { return p.log }

// Log returns the output of the process so far, both streams.
func (p *P) Log() string {
	p.t.Helper()
	b, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Errorf("process: read log: %v", err)
	}
	return string(b)
}

// tail formats the end of the log as an appendix to a message.
func (p *P) tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return fmt.Sprintf("; its log: %v", err)
	}
	text := lastLines(string(b), tailLines)
	if text == "" {
		return "; it printed nothing"
	}
	return "; its log ends:\n" + text
}

// lastLines returns the last n lines of s, preceded by the number of omitted ones.
func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	if len(lines) <= n {
		return strings.Join(lines, "\n")
	}
	return fmt.Sprintf("(%d lines before)\n", len(lines)-n) + strings.Join(lines[len(lines)-n:], "\n")
}
