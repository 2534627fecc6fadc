package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

func TestRelay(t *testing.T) {
	t.Parallel()
	var addrs []string
	for n := range 2 {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, n) }))
		t.Cleanup(server.Close)
		addrs = append(addrs, strings.TrimPrefix(server.URL, "http://"))
	}
	r, err := newRelay(t.Context(), addrs)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var seen []string
	for range 4 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.addr(), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		seen = append(seen, string(body))
	}
	if err := r.close(); err != nil {
		t.Error(err)
	}
	if want := []string{"0", "1", "0", "1"}; !slices.Equal(seen, want) {
		t.Errorf("connections reached the servers %v, want %v", seen, want)
	}
}
