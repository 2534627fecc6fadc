package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestRemote_call_ForeignAnswer: an answer that is not one of the API is an error, also if its status says
// success. A redirect is not followed: a POST would become a GET.
func TestRemote_call_ForeignAnswer(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(w http.ResponseWriter){
		"page":     func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") },
		"array":    func(w http.ResponseWriter) { fmt.Fprint(w, "[]") },
		"null":     func(w http.ResponseWriter) { fmt.Fprint(w, "null") },
		"empty":    func(w http.ResponseWriter) { fmt.Fprint(w, "{}") },
		"type":     func(w http.ResponseWriter) { fmt.Fprint(w, `{"id":7}`) },
		"huge":     func(w http.ResponseWriter) { fmt.Fprint(w, `{"id":"`+strings.Repeat("a", maxAnswer)+`"}`) },
		"nothing":  func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) },
		"redirect": func(w http.ResponseWriter) { w.Header().Set("Location", "/v1/items"); w.WriteHeader(http.StatusFound) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					fmt.Fprint(w, `{"id":"a"}`)
					return
				}
				answer(w)
			}))
			t.Cleanup(s.Close)
			r := &remote{asked: asked{server: s.URL}, client: http.Client{CheckRedirect: noRedirects}}
			var item itemView
			err := r.call(t.Context(), http.MethodPost, "/v1/admin/items", nil, &item)
			const fix = "; correct --server, which may name another service"
			if err == nil || !strings.HasPrefix(err.Error(), s.URL+" answered ") || !strings.HasSuffix(err.Error(), fix) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestRemote_decideEach_Unprintable: what a terminal would obey in an argument is not in the error.
func TestRemote_decideEach_Unprintable(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	c := find(t, Queue(), "retry")
	c.SetContext(t.Context())
	err := (&remote{asked: asked{server: s.URL}}).decideEach(c, "retry", []string{"a\x1b[2Jb"})
	if err == nil || !strings.HasPrefix(err.Error(), "retry a[2Jb: ") {
		t.Errorf("got %q", err)
	}
}

// TestRemote_call_Interrupted: a command that is interrupted does not say that the service is down, and says
// whether something may have changed.
func TestRemote_call_Interrupted(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]string{
		http.MethodGet:  "interrupted before %s answered",
		http.MethodPost: "interrupted before %s answered; the change may have been made",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			cancel()
			<-r.Context().Done()
		}))
		t.Cleanup(s.Close)
		r := &remote{asked: asked{server: s.URL}, client: http.Client{Timeout: time.Minute}}
		err := r.call(ctx, method, "/v1/admin/items", nil, nil)
		if want := fmt.Sprintf(want, s.URL); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %q", method, err, want)
		}
	}
}

// TestRemote_call_Lost: if the answer is lost, the error says whether the change may have been made.
func TestRemote_call_Lost(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	t.Cleanup(s.Close)
	gone := httptest.NewServer(nil)
	gone.Close()
	const note = "; the change may have been made"
	for _, q := range []struct {
		method, server string
		made           bool
	}{
		{http.MethodPost, s.URL, true}, {http.MethodGet, s.URL, false}, {http.MethodPost, gone.URL, false},
	} {
		r := &remote{asked: asked{server: q.server}, client: http.Client{Timeout: time.Minute}}
		err := r.call(t.Context(), q.method, "/v1/admin/items", nil, nil)
		if err == nil || strings.HasSuffix(err.Error(), note) != q.made || !strings.Contains(err.Error(), " does not answer") {
			t.Errorf("%s %s: got %v; want the note: %v", q.method, q.server, err, q.made)
		}
	}
}
