// Package static serves files that are kept compressed in memory: the pages' styles and modules, and
// the API reference.
package static

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net/http"
	"strconv"
	"sync"

	"flashsale/handler/request"
)

// File is a file that is kept compressed.
type File struct {
	contentType []string
	packed      []byte // one gzip member
	hash        string // of packed
	size        int    // of the content
	plain       func() ([]byte, error)
}

// New returns a file with the given content.
func New(contentType string, content []byte) *File { return NewPacked(contentType, pack(content)) }

// NewPacked returns a file whose content is one gzip member.
func NewPacked(contentType string, packed []byte) *File {
	sum := sha256.Sum256(packed)
	return &File{
		contentType: []string{contentType},
		packed:      packed,
		hash:        hex.EncodeToString(sum[:6]),
		// A gzip member ends with the length of its content.
		size:  int(binary.LittleEndian.Uint32(packed[len(packed)-4:])),
		plain: sync.OnceValues(func() ([]byte, error) { return unpack(packed) }),
	}
}

// Hash identifies the content: 12 hexadecimal digits.
func (f *File) Hash() string { return f.hash }

// pack compresses data.
func pack(data []byte) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic("static: " + err.Error()) // writing to memory cannot fail
	}
	return b.Bytes()
}

func unpack(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// Serve answers a request for the file, or with 304 if the client has it. The content is decompressed once, for the
// first client that does not accept gzip. The caller sets Cache-Control. An error means that the client has disconnected.
func (f *File) Serve(w http.ResponseWriter, r *http.Request) error {
	h := w.Header()
	tag, length := `"`+f.hash+`"`, f.size
	zipped := request.AcceptsGzip(r.Header["Accept-Encoding"])
	if zipped {
		tag, length = `"`+f.hash+`-gzip"`, len(f.packed)
	}
	h["Etag"] = []string{tag}
	h["Vary"] = []string{"Accept-Encoding"}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	if known := r.Header["If-None-Match"]; len(known) > 0 && request.HasTag(known, tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	body := f.packed
	if zipped {
		h["Content-Encoding"] = []string{"gzip"}
	} else {
		var err error
		if body, err = f.plain(); err != nil {
			return err
		}
	}
	h["Content-Type"] = f.contentType
	h["Content-Length"] = []string{strconv.Itoa(length)}
	w.WriteHeader(http.StatusOK)
	_, err := w.Write(body)
	return err
}
