package handler

import (
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"testing"

	"flashsale/handler/openapi"
)

// The document is served as it is, compressed for clients that accept gzip, and not sent again to
// a client that has it.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	s := open(t)
	w := getPage(s, "/openapi.yaml")
	if w.Code != http.StatusOK || w.Body.String() != openapi.Document {
		t.Fatalf("%d, %d bytes", w.Code, w.Body.Len())
	}
	tag := w.Header().Get("ETag")
	for name, want := range map[string]string{
		"Content-Type": "application/yaml", "Cache-Control": "no-cache", "Vary": "Accept-Encoding",
		"X-Content-Type-Options": "nosniff", "Content-Length": strconv.Itoa(len(openapi.Document)), "Content-Encoding": "",
	} {
		wantHeader(t, w, name, want)
	}
	w = getPage(s, "/openapi.yaml", "Accept-Encoding", "br, gzip")
	wantHeader(t, w, "Content-Encoding", "gzip")
	if zipped := w.Header().Get("ETag"); zipped == tag { // RFC 9110, 8.8.3: another representation
		t.Errorf("both forms have the ETag %s", tag)
	}
	if w.Body.Len() > len(openapi.Document)/4 {
		t.Errorf("%d bytes are compressed to %d", len(openapi.Document), w.Body.Len())
	}
	r, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || string(text) != openapi.Document {
		t.Errorf("compressed: %d bytes, %v", len(text), err)
	}
	if w := getPage(s, "/openapi.yaml", "If-None-Match", tag); w.Code != http.StatusNotModified || w.Body.Len() != 0 {
		t.Errorf("known: %d with %d bytes", w.Code, w.Body.Len())
	}
	if w := getPage(s, "/openapi.yaml", "Accept", "application/yaml, */*;q=0.1"); w.Code != http.StatusOK {
		t.Errorf("an Accept header with the type: %d", w.Code)
	}
	wantProblem(t, getPage(s, "/openapi.yaml", "Accept", "application/json").Result(), 406, "not_acceptable")
}
