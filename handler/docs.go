package handler

import (
	"html"
	"net/http"
	"strconv"
	"strings"

	"flashsale/docs"
)

// docsPage is the page to which the type of every problem links: docs/problems.md, with an
// anchor for each code.
var docsPage = renderDocs(docs.Problems)

// The page is text: it loads no resources, runs no scripts, and may not be framed.
const docsPolicy = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// showDocs answers GET /docs.
func showDocs(q *call) error {
	h := q.c.Writer.Header()
	h["Content-Type"] = []string{"text/html; charset=utf-8"}
	h["Content-Length"] = []string{strconv.Itoa(len(docsPage))}
	h["Cache-Control"] = []string{"public, max-age=300"}
	h["Content-Security-Policy"] = []string{docsPolicy}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	h["Referrer-Policy"] = []string{"no-referrer"}
	q.c.Writer.WriteHeader(http.StatusOK)
	if _, err := q.c.Writer.Write(docsPage); err != nil {
		return errClientGone
	}
	return nil
}

// renderDocs converts the Markdown features that the page uses to HTML: headings of the first
// and second level, paragraphs, and code in backticks. A heading of the second level is an
// anchor with its own text.
func renderDocs(markdown string) []byte {
	var b strings.Builder
	b.WriteString("<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n" +
		"<meta name=\"viewport\" content=\"width=device-width\">\n<title>Problems</title>\n")
	for block := range strings.SplitSeq(strings.TrimSpace(markdown), "\n\n") {
		block = strings.TrimSpace(block)
		if anchor, ok := strings.CutPrefix(block, "## "); ok {
			anchor = html.EscapeString(anchor)
			b.WriteString("<h2 id=\"" + anchor + "\">" + anchor + "</h2>\n")
			continue
		}
		tag := "p"
		if title, ok := strings.CutPrefix(block, "# "); ok {
			tag, block = "h1", title
		}
		b.WriteString("<" + tag + ">")
		for i, piece := range strings.Split(html.EscapeString(block), "`") {
			if i%2 == 1 {
				piece = "<code>" + piece + "</code>"
			}
			b.WriteString(piece)
		}
		b.WriteString("</" + tag + ">\n")
	}
	return []byte(b.String())
}
