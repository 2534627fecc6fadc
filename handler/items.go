package handler

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"hash/crc32"
	"hash/fnv"
	"net/http"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/catalog"
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
	limit, err := q.pageLimit()
	if err != nil {
		return err
	}
	after := ""
	if q.query.Has("cursor") {
		var ok bool
		if after, ok = rs.cursors.readItemCursor(q.query.Get("cursor")); !ok {
			return problemCursor
		}
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

// page is an encoded response for many readers. It is encoded once, except for its server_time.
type page struct {
	kept  bool   // for other readers; only such pages are compressed
	head  []byte // the part that does not depend on the second
	timed bool   // server_time and the end of the object follow the head
	// The head is valid in [from, until); a zero time is no bound. from matters if the clock is
	// set back.
	from, until time.Time
	tag         []string // the ETag: the same for the same content, regardless of server_time

	packing sync.Once
	packed  []byte // the compressed head, in a form to which more can be appended
	sum     uint32 // its CRC
}

// itemPage returns the page of an item at the given time of its sale's clock.
func itemPage(v *catalog.View, now time.Time) *page {
	p, ok := v.Made().(*page)
	if !ok || !p.good(now) {
		p = &page{kept: true, head: appendItemHead(nil, &v.Item, now), timed: true}
		p.from, p.until = stateSpan(&v.Item, now)
		p.tag = tagOf(p.head)
		v.Keep(p)
	}
	return p
}

// listPages are the encoded pages of one list that are kept for other readers, by their length:
// the default and the maximum. Each begins at a multiple of its length, like the pages of a
// reader who follows the cursors from the beginning. So an item is encoded at most twice,
// whatever limits and cursors are requested.
type listPages map[int][]atomic.Pointer[page]

func newListPages(items int) listPages {
	kept := listPages{}
	for _, length := range []int{defaultPage, maxPage} {
		kept[length] = make([]atomic.Pointer[page], items/length+1) // an empty page may follow the last item
	}
	return kept
}

// listPage returns the page of at most limit items from a given index. If the page is kept, one
// reader encodes it for all. now is the host's time; each item's state follows the clock of its
// own sale.
func (rs *itemRoutes) listPage(v *catalog.ListView, from, limit int, now time.Time) *page {
	if limit != defaultPage && limit != maxPage || from%limit != 0 {
		return rs.newListPage(v, from, limit, now)
	}
	if kept, ok := v.Made().(listPages); ok {
		if p := kept[limit][from/limit].Load(); p != nil && p.good(now) {
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
	if p := at.Load(); p != nil && p.good(now) {
		return p
	}
	p := rs.newListPage(v, from, limit, now)
	p.kept = true
	at.Store(p)
	return p
}

// newListPage encodes a page of the list.
func (rs *itemRoutes) newListPage(v *catalog.ListView, from, limit int, now time.Time) *page {
	items := v.Items[from:min(from+limit, len(v.Items))]
	p := &page{until: now.Add(listLife)}
	b := append(make([]byte, 0, 64+len(items)*listItemSize), `{"items":[`...)
	content := fnv.New64a()
	for i := range items {
		if i > 0 {
			b = append(b, ',')
		}
		start, at := len(b), rs.itemNow(items[i].ID)
		b = appendItemHead(b, &items[i], at)
		_, _ = content.Write(b[start:]) // a hash's Write never fails
		b = appendServerTime(b, at)
		if _, until := stateSpan(&items[i], at); !until.IsZero() && until.Sub(at) < p.until.Sub(now) {
			p.until = now.Add(until.Sub(at))
		}
	}
	next := ""
	if from+len(items) < len(v.Items) {
		next = rs.cursors.makeItemCursor(items[len(items)-1].ID)
	}
	start := len(b)
	b = appendTextField(append(b, ']'), `,"next_cursor":`, next)
	_, _ = content.Write(b[start:])
	p.head = append(b, '}')
	p.tag = weakTag(content.Sum64())
	return p
}

func (p *page) good(now time.Time) bool {
	return !now.Before(p.from) && (p.until.IsZero() || now.Before(p.until))
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

func tagOf(content []byte) []string {
	h := fnv.New64a()
	_, _ = h.Write(content) // a hash's Write never fails
	return weakTag(h.Sum64())
}

func weakTag(sum uint64) []string {
	return []string{`W/"` + strconv.FormatUint(sum, 36) + `"`}
}

// age is the age of a page's content, if the answer has to state it.
type age struct {
	stale bool
	old   time.Duration
}

// writePage writes a page, or 304 if the client already has it.
func (q *call) writePage(p *page, now time.Time, a age) error {
	in, h := q.c.Request.Header, q.c.Writer.Header()
	h["Cache-Control"], h["Vary"], h["Etag"] = headerPublic, headerVary, p.tag
	if a.stale {
		h["Age"] = []string{strconv.FormatInt(int64(max(0, a.old/time.Second)), 10)}
		h["Warning"] = headerIsStale
	}
	if known := in["If-None-Match"]; len(known) > 0 && anyTagMatches(known, p.tag[0]) {
		q.c.Status(http.StatusNotModified)
		q.c.Writer.WriteHeaderNow()
		return nil
	}
	if p.kept && len(p.head) >= packedFrom && acceptsGzip(in["Accept-Encoding"]) {
		h["Content-Encoding"] = headerGzip
		q.out = p.appendPacked(q.out[:0], now)
	} else {
		q.out = p.append(q.out[:0], now)
	}
	if len(q.out) >= packedFrom {
		// The server sets the length of short answers automatically.
		h["Content-Length"] = []string{strconv.Itoa(len(q.out))}
	}
	return q.json(http.StatusOK)
}

func (p *page) append(b []byte, now time.Time) []byte {
	b = append(b, p.head...)
	if p.timed {
		b = appendServerTime(b, now)
	}
	return b
}

// appendPacked appends the compressed page. The compressed head ends at a byte boundary; the
// time follows it in an uncompressed block.
func (p *page) appendPacked(b []byte, now time.Time) []byte {
	p.packing.Do(p.pack)
	b = append(b, p.packed...)
	sum, size := p.sum, len(p.head)
	var tail [64]byte
	end := tail[:0]
	if p.timed {
		end = appendServerTime(end, now)
		sum, size = crc32.Update(sum, crc32.IEEETable, end), size+len(end)
	}
	b = append(b, 1) // the last block, stored
	b = binary.LittleEndian.AppendUint16(b, uint16(len(end)))
	b = binary.LittleEndian.AppendUint16(b, ^uint16(len(end)))
	b = append(b, end...)
	b = binary.LittleEndian.AppendUint32(b, sum)
	return binary.LittleEndian.AppendUint32(b, uint32(size))
}

// packers are writers for pack; each uses most of a megabyte.
var packers = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

func (p *page) pack() {
	var to bytes.Buffer
	w := packers.Get().(*gzip.Writer)
	w.Reset(&to)
	_, _ = w.Write(p.head) //nolint:errcheck // a buffer's Write never fails
	_ = w.Flush()          //nolint:errcheck // the same
	packers.Put(w)
	p.packed, p.sum = to.Bytes(), crc32.ChecksumIEEE(p.head)
}

// anyTagMatches reports whether an If-None-Match header contains the tag, by weak comparison:
// pages with the same tag differ only in their time.
func anyTagMatches(values []string, tag string) bool {
	tag = strings.TrimPrefix(tag, "W/")
	for _, value := range values {
		for one := range strings.SplitSeq(value, ",") {
			one = strings.TrimSpace(one)
			if one == "*" || strings.TrimPrefix(one, "W/") == tag {
				return true
			}
		}
	}
	return false
}

// acceptsGzip parses an Accept-Encoding header. A coding that it does not name is not used.
func acceptsGzip(values []string) bool {
	takes, named := false, false
	for _, value := range values {
		for one := range strings.SplitSeq(value, ",") {
			coding, params, _ := strings.Cut(one, ";")
			switch strings.ToLower(strings.TrimSpace(coding)) {
			case "gzip", "x-gzip":
				takes, named = !weightZero(params), true
			case "*":
				takes = named && takes || !named && !weightZero(params)
			}
		}
	}
	return takes
}
