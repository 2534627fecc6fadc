package pages

import (
	"bytes"
	"crypto/rand"
	"io"
	"maps"
	"sync"
	"time"
)

const (
	// crowdLife is the age up to which a rendered page is shown to other readers.
	crowdLife = 250 * time.Millisecond
	// crowdPages bounds the rendered pages that are kept.
	crowdPages = 1000
)

// Crowd renders the pages of items once for many readers: it keeps each page, and inserts the buyer
// and the key of each reader. The zero value is ready for use.
type Crowd struct {
	mu   sync.Mutex
	kept map[crowdKey]*crowdPage
}

// crowdKey is everything on which a page depends besides time, buyer and key.
type crowdKey struct {
	path, cursor, language string
	loggedIn, atLimit      bool
}

func keyOf(f *Frame) crowdKey {
	return crowdKey{path: f.Path, cursor: f.Query.Get("cursor"), language: f.Code, loggedIn: f.Buyer != ""}
}

// crowdPage is a rendered page: the parts between the places of the buyer and of the key.
type crowdPage struct {
	at       time.Time
	renewing bool // a reader renders the next one; guarded by Crowd.mu
	parts    []crowdPart
}

// crowdPart is a part of a page and the value that follows it.
type crowdPart struct {
	text []byte
	then insertion
}

type insertion int

const (
	nothing insertion = iota
	theBuyer
	theKey
)

// Texts that stand for the buyer and the key in a rendered page. They cannot be guessed, so no text
// of an item contains them. Like them, buyers' ids and keys need no escaping in HTML.
var buyerMark, keyMark = rand.Text(), rand.Text()

// Item writes the page of an item, which has no notice, as Render would write it at the given time or
// up to half a second before.
func (c *Crowd) Item(w io.Writer, page *ItemPage, now time.Time) error {
	id := keyOf(&page.Frame)
	id.atLimit = page.AtLimit
	return c.write(w, id, &page.Frame, page.Key, now, func(f Frame, key string) (string, any, error) {
		marked := *page
		marked.Frame, marked.Key = f, key
		return "shop/item", &marked, nil
	})
}

// Items writes a page of the list in the same way. items reads what it shows.
func (c *Crowd) Items(w io.Writer, f *Frame, now time.Time, items func() (Items, error)) error {
	return c.write(w, keyOf(f), f, "", now, func(f Frame, _ string) (string, any, error) {
		page, err := items()
		page.Frame = f
		return "shop/items", &page, err
	})
}

// write writes the page that is kept under the id, or the one that read returns.
func (c *Crowd) write(w io.Writer, id crowdKey, f *Frame, key string, now time.Time, read func(f Frame, key string) (name string, page any, err error)) error {
	known, current := c.find(id, now)
	if !current {
		marked := *f
		if marked.Buyer != "" {
			marked.Buyer = buyerMark
		}
		name, page, err := read(marked, keyMark)
		if err == nil {
			known, err = newCrowdPage(name, page, now)
		}
		if err != nil {
			return err
		}
		c.keep(id, known)
	}
	for _, p := range known.parts {
		if _, err := w.Write(p.text); err != nil {
			return err
		}
		value := ""
		switch p.then {
		case theBuyer:
			value = f.Buyer
		case theKey:
			value = key
		case nothing:
		}
		if _, err := io.WriteString(w, value); err != nil {
			return err
		}
	}
	return nil
}

// find returns the page that is kept, and whether to show it. While one reader renders it again, the
// others get the earlier one for as long again.
func (c *Crowd) find(id crowdKey, now time.Time) (p *crowdPage, current bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p = c.kept[id]
	switch {
	case p == nil || now.Before(p.at) || now.Sub(p.at) > 2*crowdLife:
		return nil, false
	case now.Sub(p.at) <= crowdLife || p.renewing:
		return p, true
	}
	p.renewing = true
	return p, false
}

// keep stores a page for other readers. If there are too many, the old ones go first.
func (c *Crowd) keep(id crowdKey, p *crowdPage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.kept) >= crowdPages {
		maps.DeleteFunc(c.kept, func(_ crowdKey, old *crowdPage) bool { return p.at.Sub(old.at) > 2*crowdLife })
	}
	if c.kept == nil || len(c.kept) >= crowdPages {
		c.kept = make(map[crowdKey]*crowdPage)
	}
	c.kept[id] = p
}

// newCrowdPage renders a page with the marks.
func newCrowdPage(name string, page any, now time.Time) (*crowdPage, error) {
	var b bytes.Buffer
	if err := Render(&b, name, page); err != nil {
		return nil, err
	}
	p := &crowdPage{at: now}
	for rest := b.Bytes(); ; {
		at, mark, then := bytes.Index(rest, []byte(keyMark)), keyMark, theKey
		if i := bytes.Index(rest, []byte(buyerMark)); i >= 0 && (at < 0 || i < at) {
			at, mark, then = i, buyerMark, theBuyer
		}
		if at < 0 {
			p.parts = append(p.parts, crowdPart{text: rest})
			return p, nil
		}
		p.parts = append(p.parts, crowdPart{rest[:at], then})
		rest = rest[at+len(mark):]
	}
}
