package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"flashsale/internal/wire"
)

// A service that was restarted, or that has closed an idle connection, costs no verdict.
func TestAPI_Call_ClosedConnection(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	defer srv.Close()
	target, err := wire.ParseTarget(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	a := newAPI(target, "")
	defer a.close()
	for i := range 3 {
		if res, err := a.call(t.Context(), "GET", "/", nil); err != nil || res.status != http.StatusNoContent {
			t.Fatalf("call %d: %+v, %v", i, res, err)
		}
		srv.CloseClientConnections()
	}
	// A change is not sent twice.
	if _, err := a.call(t.Context(), "POST", "/", nil); err == nil {
		t.Error("a POST on a closed connection was answered")
	}
	srv.Close()
	if _, err := a.call(t.Context(), "GET", "/", nil); err == nil {
		t.Error("a server that is gone answered")
	}
}
