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
	Timed bool   // server_time, the end of the object and a newline follow Head
	// Head is valid in [From, Until); a zero time is no bound. From matters if the clock is
	// set back.
	From, Until time.Time
	Tag         []string // the ETag: the same for the same content, regardless of server_time

	packing sync.Once
	packed  []byte // the compressed page; of a timed one the head, to which more can be appended
	sum     uint32 // the CRC of the head
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

// Plain returns the page with the given server_time. A page that is not timed is the same bytes for
// all readers, which must not be changed; a timed one is written to b from its beginning.
func (p *Page) Plain(b []byte, now time.Time) []byte {
	if !p.Timed {
		return p.Head
	}
	return pageEnd(append(b[:0], p.Head...), now)
}

// Packed is Plain for the compressed page.
func (p *Page) Packed(b []byte, now time.Time) []byte {
	p.packing.Do(p.pack)
	if !p.Timed {
		return p.packed
	}
	var tail [64]byte
	end := pageEnd(tail[:0], now)
	return endPacked(append(b[:0], p.packed...), end, crc32.Update(p.sum, crc32.IEEETable, end), len(p.Head)+len(end))
}

// endPacked appends the end of a compressed page: the rest of its content in an uncompressed block,
// and the checksum and the size of the whole content. The compressed part ends at a byte boundary.
func endPacked(b, end []byte, sum uint32, size int) []byte {
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
	if !p.Timed {
		p.packed = endPacked(p.packed, nil, p.sum, len(p.Head))
	}
}

// pageEnd appends the end of a timed page.
func pageEnd(b []byte, now time.Time) []byte { return append(ServerTime(b, now), '\n') }

// ServerTime appends server_time and the end of the object.
func ServerTime(b []byte, now time.Time) []byte {
	return append(TimeField(b, `,"server_time":`, now), '}')
}
