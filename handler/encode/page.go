package encode

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"hash/crc32"
	"hash/fnv"
	"strconv"
	"sync"
	"time"
)

// Page is an encoded response for many readers. It is encoded once, except for its server_time.
type Page struct {
	Kept  bool   // for other readers; only such pages are compressed
	Head  []byte // the part that does not depend on the second
	Timed bool   // server_time and the end of the object follow Head
	// Head is valid in [From, Until); a zero time is no bound. From matters if the clock is
	// set back.
	From, Until time.Time
	Tag         []string // the ETag: the same for the same content, regardless of server_time

	packing sync.Once
	packed  []byte // the compressed head, in a form to which more can be appended
	sum     uint32 // its CRC
}

// Good reports whether the page shows the content as it is at the given time.
func (p *Page) Good(now time.Time) bool {
	return !now.Before(p.From) && (p.Until.IsZero() || now.Before(p.Until))
}

// TagOf returns the ETag of an encoded page.
func TagOf(content []byte) []string {
	h := fnv.New64a()
	_, _ = h.Write(content) // a hash's Write never fails
	return WeakTag(h.Sum64())
}

// WeakTag returns the ETag of a page with this hash.
func WeakTag(sum uint64) []string {
	return []string{`W/"` + strconv.FormatUint(sum, 36) + `"`}
}

// Append appends the page with the given server_time.
func (p *Page) Append(b []byte, now time.Time) []byte {
	b = append(b, p.Head...)
	if p.Timed {
		b = ServerTime(b, now)
	}
	return b
}

// AppendPacked appends the compressed page. The compressed head ends at a byte boundary; the
// time follows it in an uncompressed block.
func (p *Page) AppendPacked(b []byte, now time.Time) []byte {
	p.packing.Do(p.pack)
	b = append(b, p.packed...)
	sum, size := p.sum, len(p.Head)
	var tail [64]byte
	end := tail[:0]
	if p.Timed {
		end = ServerTime(end, now)
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

func (p *Page) pack() {
	var to bytes.Buffer
	w := packers.Get().(*gzip.Writer)
	w.Reset(&to)
	_, _ = w.Write(p.Head) //nolint:errcheck // a buffer's Write never fails
	_ = w.Flush()          //nolint:errcheck // the same
	packers.Put(w)
	p.packed, p.sum = to.Bytes(), crc32.ChecksumIEEE(p.Head)
}

// ServerTime appends server_time and the end of the object.
func ServerTime(b []byte, now time.Time) []byte {
	return append(TimeField(b, `,"server_time":`, now), '}')
}
