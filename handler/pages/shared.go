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
	// sharedLife is the age up to which a rendered page is shown to other readers.
	sharedLife = 250 * time.Millisecond
	// maxSharedPages bounds the rendered pages that are kept.
	maxSharedPages = 1000
)

// SharedPages renders the pages of items once for many readers: it keeps each page, and inserts the buyer
// and the key of each reader. The zero value is ready for use.
type SharedPages struct {
	mu   sync.Mutex
	kept map[sharedKey]*sharedPage
}

// sharedKey is everything on which a page depends besides time, buyer and key.
type sharedKey struct {
	path, cursor, language string
	loggedIn, atLimit      bool
}

func keyOf(f *Frame) sharedKey {
	return sharedKey{path: f.Path, cursor: f.Query.Get("cursor"), language: f.Code, loggedIn: f.Buyer != ""}
}

// sharedPage is a rendered page: the parts between the places of the buyer and of the key.
type sharedPage struct {
	at       time.Time
	renewing bool // a reader renders the next one; guarded by SharedPages.mu
	parts    []sharedPart
}

// sharedPart is a part of a page and the value that follows it.
type sharedPart struct {
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
func (c *SharedPages) Item(w io.Writer, page *ItemPage, now time.Time) error {
	id := keyOf(&page.Frame)
	id.atLimit = page.AtLimit
	return c.write(w, id, &page.Frame, page.Key, now, func(f Frame, key string) (string, any, error) {
		marked := *page
		marked.Frame, marked.Key = f, key
		return "shop/item", &marked, nil
	})
}

// Items writes a page of the list in the same way. items reads what it shows.
func (c *SharedPages) Items(w io.Writer, f *Frame, now time.Time, items func() (Items, error)) error {
	return c.write(w, keyOf(f), f, "", now, func(f Frame, _ string) (string, any, error) {
		page, err := items()
		page.Frame = f
		return "shop/items", &page, err
	})
}

// write writes the page that is kept under the id, or the one that read returns.
func (c *SharedPages) write(w io.Writer, id sharedKey, f *Frame, key string, now time.Time, read func(f Frame, key string) (name string, page any, err error)) error {
	known, current := c.find(id, now)
	if !current {
		marked := *f
		if marked.Buyer != "" {
			marked.Buyer = buyerMark
		}
		name, page, err := read(marked, keyMark)
		if err == nil {
			known, err = newSharedPage(name, page, now)
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
func (c *SharedPages) find(id sharedKey, now time.Time) (p *sharedPage, current bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p = c.kept[id]
	switch {
	case p == nil || now.Before(p.at) || now.Sub(p.at) > 2*sharedLife:
		return nil, false
	case now.Sub(p.at) <= sharedLife || p.renewing:
		return p, true
	}
	p.renewing = true
	return p, false
}

// keep stores a page for other readers. If there are too many, the old ones go first.
func (c *SharedPages) keep(id sharedKey, p *sharedPage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.kept) >= maxSharedPages {
		maps.DeleteFunc(c.kept, func(_ sharedKey, old *sharedPage) bool { return p.at.Sub(old.at) > 2*sharedLife })
	}
	if c.kept == nil || len(c.kept) >= maxSharedPages {
		c.kept = make(map[sharedKey]*sharedPage)
	}
	c.kept[id] = p
}

// newSharedPage renders a page with the marks.
func newSharedPage(name string, page any, now time.Time) (*sharedPage, error) {
	var b bytes.Buffer
	if err := Render(&b, name, page); err != nil {
		return nil, err
	}
	p := &sharedPage{at: now}
	for rest := b.Bytes(); ; {
		at, mark, then := bytes.Index(rest, []byte(keyMark)), keyMark, theKey
		if i := bytes.Index(rest, []byte(buyerMark)); i >= 0 && (at < 0 || i < at) {
			at, mark, then = i, buyerMark, theBuyer
		}
		if at < 0 {
			p.parts = append(p.parts, sharedPart{text: rest})
			return p, nil
		}
		p.parts = append(p.parts, sharedPart{rest[:at], then})
		rest = rest[at+len(mark):]
	}
}
