package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

// listPage is the size of the pages in which lists are read, the maximum.
const listPage = 100

// flagJSON declares --json of a command that prints a list.
func flagJSON(f *pflag.FlagSet, to *bool) {
	f.BoolVar(to, "json", false, "print all fields as one line of JSON, with the names that the API uses")
}

// list reads up to limit entries of a list of the API, page by page; 0 for all. name is that of the
// list in an answer.
func (r *remote) list(ctx context.Context, path, name string, query url.Values, limit int) ([]json.RawMessage, error) {
	all := []json.RawMessage{}
	query.Set("limit", strconv.Itoa(listPage))
	for {
		if err := r.renew(); err != nil {
			return nil, err
		}
		var page map[string]json.RawMessage
		if err := r.call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		var some []json.RawMessage
		var next string
		if json.Unmarshal(page[name], &some) != nil || json.Unmarshal(page["next_cursor"], &next) != nil {
			return nil, r.foreign("without a list of " + name)
		}
		all = append(all, some...)
		switch {
		case limit > 0 && len(all) >= limit:
			return all[:limit], nil
		case next == "":
			return all, nil
		}
		query.Set("cursor", next)
	}
}

func decodeJSON[T any](text json.RawMessage) (v T, err error) {
	if err = json.Unmarshal(text, &v); err != nil {
		err = fmt.Errorf("read answer: %w", err)
	}
	return v, err
}

// decodeEach decodes the entries of a list.
func decodeEach[T any](entries []json.RawMessage) ([]T, error) {
	all := make([]T, 0, len(entries))
	for _, text := range entries {
		v, err := decodeJSON[T](text)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// printJSON prints a list as one line, under its name in the API.
func printJSON(out io.Writer, name string, entries []json.RawMessage) error {
	return json.NewEncoder(out).Encode(map[string][]json.RawMessage{name: entries})
}

const (
	// tableWidth is the width of a table whose last column is cut; --json prints everything.
	tableWidth = 120
	// leastLast is the least width of that column.
	leastLast = 24
	columnGap = 2
)

// printTable prints rows in columns. The first row is the head.
func printTable(out io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 4, columnGap, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i := range row {
			cells[i] = printable(row[i])
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}

// cutLast cuts the texts in the last column, so that lines fit into tableWidth.
func cutLast(rows [][]string) [][]string {
	room, last := tableWidth, len(rows[0])-1
	for i := range last {
		widest := 0
		for _, row := range rows {
			widest = max(widest, utf8.RuneCountInString(row[i]))
		}
		room -= widest + columnGap
	}
	for _, row := range rows {
		row[last] = fit(oneLine(row[last]), max(room, leastLast))
	}
	return rows
}

// oneLine joins the lines of a text.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// second is a time of the API without its fraction.
func second(text string) string {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return text
	}
	return at.UTC().Format(time.RFC3339)
}
