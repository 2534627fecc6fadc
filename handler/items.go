package handler

import (
	"hash/fnv"
	"net/http"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/catalog"
	"flashsale/handler/encode"
	"flashsale/handler/request"
)

// itemRoutes show items without authentication.
type itemRoutes struct {
	items   itemCatalog
	cursors sealer
	now     func() time.Time
	itemNow func(item string) time.Time
	listing sync.Mutex // held while a page of the list is encoded
}

// list answers GET /v1/items: a page of the items, by id.
func (rs *itemRoutes) list(q *call) error {
	limit, err := q.query.Limit()
	if err != nil {
		return err
	}
	after, err := rs.cursors.afterItem(q.query)
	if err != nil {
		return err
	}
	v, err := rs.items.List(q.ctx())
	if err != nil {
		return err
	}
	now := rs.now() // loading the item may have taken time
	return q.writePage(rs.listPage(v, placeAfter(v, after), limit, now), now, age{v.Stale, now.Sub(v.LoadedAt)})
}

// placeAfter returns the index of the first item after an id, which need not exist any more.
func placeAfter(v *catalog.ListView, id string) int {
	return sort.Search(len(v.Items), func(i int) bool { return v.Items[i].ID > id })
}

// get answers GET /v1/items/{item}.
func (rs *itemRoutes) get(q *call) error {
	id := q.c.Param("item")
	v, err := rs.items.View(q.ctx(), id)
	if err != nil {
		return err
	}
	now := rs.itemNow(id)
	return q.writePage(itemPage(v, now), now, age{v.Stale, rs.now().Sub(v.LoadedAt)})
}

// The headers of public pages. A cache may serve a page for one second, for two more while it
// revalidates, and for a minute while the service fails: a stale page is harmless, because the
// purchase decides.
var (
	headerPublic  = []string{"public, max-age=1, stale-while-revalidate=2, stale-if-error=60"}
	headerVary    = []string{"Accept-Encoding"}
	headerGzip    = []string{"gzip"}
	headerIsStale = []string{`110 - "Response is Stale"`}
)

// packedFrom is the length, in bytes, from which a page is compressed: a shorter one fits into
// one packet.
const packedFrom = 1200

// listLife is the maximum age of server_time in the list, which is encoded once for many
// readers.
const listLife = 250 * time.Millisecond

// listItemSize is the approximate size of an encoded item without its texts, in bytes.
const listItemSize = 400

// itemPage returns the page of an item at the given time of its sale's clock.
func itemPage(v *catalog.View, now time.Time) *encode.Page {
	p, ok := v.Made().(*encode.Page)
	if !ok || !p.Good(now) {
		p = &encode.Page{Kept: true, Head: appendItemHead(nil, &v.Item, now), Timed: true}
		p.From, p.Until = stateSpan(&v.Item, now)
		p.Tag = encode.TagOf(p.Head)
		v.Keep(p)
	}
	return p
}

// listPages are the encoded pages of one list that are kept for other readers, by their length:
// the default and the maximum. Each begins at a multiple of its length, like the pages of a
// reader who follows the cursors from the beginning. So an item is encoded at most twice,
// whatever limits and cursors are requested.
type listPages map[int][]atomic.Pointer[encode.Page]

func newListPages(items int) listPages {
	kept := listPages{}
	for _, length := range []int{request.DefaultPage, request.MaxPage} {
		kept[length] = make([]atomic.Pointer[encode.Page], items/length+1) // an empty page may follow the last item
	}
	return kept
}

// listPage returns the page of at most limit items from a given index. If the page is kept, one
// reader encodes it for all. now is the host's time; each item's state follows the clock of its
// own sale.
func (rs *itemRoutes) listPage(v *catalog.ListView, from, limit int, now time.Time) *encode.Page {
	if limit != request.DefaultPage && limit != request.MaxPage || from%limit != 0 {
		return rs.newListPage(v, from, limit, now)
	}
	if kept, ok := v.Made().(listPages); ok {
		if p := kept[limit][from/limit].Load(); p != nil && p.Good(now) {
			return p
		}
	}
	rs.listing.Lock()
	defer rs.listing.Unlock()
	kept, ok := v.Made().(listPages)
	if !ok {
		kept = newListPages(len(v.Items))
		v.Keep(kept)
	}
	at := &kept[limit][from/limit]
	if p := at.Load(); p != nil && p.Good(now) {
		return p
	}
	p := rs.newListPage(v, from, limit, now)
	p.Kept = true
	at.Store(p)
	return p
}

// newListPage encodes a page of the list.
func (rs *itemRoutes) newListPage(v *catalog.ListView, from, limit int, now time.Time) *encode.Page {
	items := v.Items[from:min(from+limit, len(v.Items))]
	p := &encode.Page{Until: now.Add(listLife)}
	b := append(make([]byte, 0, 64+len(items)*listItemSize), `{"items":[`...)
	content := fnv.New64a()
	for i := range items {
		if i > 0 {
			b = append(b, ',')
		}
		start, at := len(b), rs.itemNow(items[i].ID)
		b = appendItemHead(b, &items[i], at)
		_, _ = content.Write(b[start:]) // a hash's Write never fails
		b = encode.ServerTime(b, at)
		if _, until := stateSpan(&items[i], at); !until.IsZero() && until.Sub(at) < p.Until.Sub(now) {
			p.Until = now.Add(until.Sub(at))
		}
	}
	next := ""
	if from+len(items) < len(v.Items) {
		next = rs.cursors.makeItemCursor(items[len(items)-1].ID)
	}
	start := len(b)
	b = encode.TextField(append(b, ']'), `,"next_cursor":`, next)
	_, _ = content.Write(b[start:])
	p.Head = append(b, "}\n"...)
	p.Tag = encode.WeakTag(content.Sum64())
	return p
}

// stateSpan returns the time around now in which the clock does not change the item's state; a
// zero time is no bound.
func stateSpan(i *catalog.Item, now time.Time) (from, until time.Time) {
	switch {
	case now.Before(i.OpensAt):
		return time.Time{}, i.OpensAt
	case now.Before(i.ClosesAt):
		return i.OpensAt, i.ClosesAt
	case i.ClosesAt.IsZero():
		return i.OpensAt, time.Time{}
	default:
		return i.ClosesAt, time.Time{}
	}
}

// age is the age of a page's content, if the answer has to state it.
type age struct {
	stale bool
	old   time.Duration
}

// writePage writes a page, or 304 if the client already has it.
func (q *call) writePage(p *encode.Page, now time.Time, a age) error {
	in, h := q.c.Request.Header, q.c.Writer.Header()
	h["Cache-Control"], h["Vary"], h["Etag"] = headerPublic, headerVary, p.Tag
	if a.stale {
		h["Age"] = []string{strconv.FormatInt(int64(max(0, a.old/time.Second)), 10)}
		h["Warning"] = headerIsStale
	}
	if known := in["If-None-Match"]; len(known) > 0 && request.HasTag(known, p.Tag[0]) {
		q.c.Status(http.StatusNotModified)
		q.c.Writer.WriteHeaderNow()
		return nil
	}
	var body []byte
	if p.Kept && len(p.Head) >= packedFrom && request.AcceptsGzip(in["Accept-Encoding"]) {
		h["Content-Encoding"] = headerGzip
		body = p.Packed(q.out, now)
	} else {
		body = p.Plain(q.out, now)
	}
	if p.Timed {
		q.out = body // keeps the buffer; the bytes of any other page belong to all its readers
	}
	if len(body) >= packedFrom {
		// The server sets the length of short answers automatically.
		h["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	return q.writeJSON(http.StatusOK, body)
}
