//go:build unix

package main_test

import (
	"net/http"
	"net/url"
	"testing"

	"flashsale/handler/openapi"
	"flashsale/internal/testing/contract"
	"flashsale/internal/wire"
)

// apiContract returns the document that the service serves.
func apiContract(t *testing.T) *contract.Contract {
	t.Helper()
	c, err := contract.Parse(openapi.Document)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// differs reports a difference between the service and its document.
func differs(t *testing.T, err error) {
	if t.Context().Err() == nil {
		t.Errorf("contract: %v", err)
	}
}

// underContract checks the exchanges of a client of net/http.
func underContract(t *testing.T, base http.RoundTripper) http.RoundTripper {
	t.Helper()
	return apiContract(t).Transport(base, func(err error) { differs(t, err) })
}

// underContract checks one exchange. Paths that are no URL are beyond the document.
func (c *client) underContract(method, path, token, body string, headers []string, res *wire.Response) {
	u, err := url.ParseRequestURI(path)
	if c.contract == nil || err != nil {
		return
	}
	e := &contract.Exchange{Method: method, URL: u, Request: http.Header{}, Status: res.Status, Header: http.Header{}, Body: res.Body}
	if token != "" {
		e.Request.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		e.Request.Add(headers[i], headers[i+1])
	}
	if method == http.MethodPost || method == http.MethodPatch {
		e.Sent = []byte(body)
	}
	res.Headers(func(name, value []byte) { e.Header.Add(string(name), string(value)) })
	if err := c.contract.Check(e); err != nil {
		differs(c.t, err)
	}
}
