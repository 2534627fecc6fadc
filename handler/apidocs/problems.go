package apidocs

import (
	"html"
	"html/template"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// problemPage is docs/problems.md.
type problemPage struct {
	Intro    []template.HTML
	Problems []problemSection
	Index    []statusGroup // by status, in the order of the page
}

// problemSection explains one code.
type problemSection struct {
	Code   string
	Status int
	Text   []template.HTML // paragraphs
}

// statusGroup lists the codes of one status.
type statusGroup struct {
	Status int
	Name   string
	Codes  []string
}

// readProblems converts the Markdown features that the page uses: headings of the first and second
// level, paragraphs, code in backticks and links. A heading of the second level is a code; its first
// paragraph begins with the status, as in "409. …".
func readProblems(markdown string) problemPage {
	var p problemPage
	for block := range strings.SplitSeq(strings.TrimSpace(markdown), "\n\n") {
		block = strings.TrimSpace(block)
		if code, ok := strings.CutPrefix(block, "## "); ok {
			p.Problems = append(p.Problems, problemSection{Code: code})
			continue
		}
		switch {
		case strings.HasPrefix(block, "# "): // the template has a heading of its own
		case len(p.Problems) == 0:
			p.Intro = append(p.Intro, inline(block))
		default:
			p.add(block)
		}
	}
	return p
}

// add adds a paragraph to the last section.
func (p *problemPage) add(block string) {
	last := &p.Problems[len(p.Problems)-1]
	if number, rest, ok := strings.Cut(block, ". "); ok && last.Status == 0 {
		if status, err := strconv.Atoi(number); err == nil {
			last.Status, block = status, rest
			p.index(status, last.Code)
		}
	}
	last.Text = append(last.Text, inline(block))
}

func (p *problemPage) index(status int, code string) {
	if n := len(p.Index); n == 0 || p.Index[n-1].Status != status {
		p.Index = append(p.Index, statusGroup{Status: status, Name: http.StatusText(status)})
	}
	group := &p.Index[len(p.Index)-1]
	group.Codes = append(group.Codes, code)
}

// link matches a Markdown link in escaped text.
var link = regexp.MustCompile(`\[([^\]]+)\]\(([^)\s]+)\)`)

// inline converts a paragraph. Links to other files of the repository become plain text, because the
// service does not serve these files.
func inline(text string) template.HTML {
	var b strings.Builder
	for i, piece := range strings.Split(html.EscapeString(text), "`") {
		if i%2 == 1 {
			b.WriteString("<code>" + piece + "</code>")
			continue
		}
		b.WriteString(link.ReplaceAllStringFunc(piece, func(found string) string {
			m := link.FindStringSubmatch(found)
			if strings.HasPrefix(m[2], "#") || strings.HasPrefix(m[2], "/") || strings.HasPrefix(m[2], "https://") {
				return `<a href="` + m[2] + `">` + m[1] + "</a>"
			}
			return m[1]
		}))
	}
	return template.HTML(b.String()) //nolint:gosec // escaped above
}
