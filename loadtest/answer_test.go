package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"flashsale/internal/wire"
)

func TestRead(t *testing.T) {
	t.Parallel()
	want := expected{"shoe", "b1", 2}
	order := `{"id":"o1","item_id":"shoe","user_id":"b1","quantity":2,"unit_price_minor":990,"currency":"EUR","status":"confirmed"}`
	tests := []struct {
		name   string
		status int
		header string
		body   string
		want   answer // fault: any text matches "*"
	}{
		{"committed", 201, "", order, answer{kind: kindAccepted, status: 201, order: "o1"}},
		{"queued", 202, "", order, answer{kind: kindAccepted, status: 202, order: "o1"}},
		{"replay", 201, "Idempotent-Replayed: true", order, answer{kind: kindAccepted, status: 201, order: "o1", replayed: true}},
		{"rejected", 200, "", strings.Replace(order, "confirmed", "rejected", 1), answer{kind: kindRefused, status: 200, order: "o1", code: "rejected:"}},
		{"no order", 201, "", `<html>`, answer{kind: kindAccepted, status: 201, fault: "*"}},
		{"no id", 201, "", `{}`, answer{kind: kindAccepted, status: 201, fault: "*"}},
		{"other quantity", 201, "", strings.Replace(order, ":2", ":1", 1), answer{kind: kindAccepted, status: 201, order: "o1", fault: "*"}},
		{"other price", 201, "", strings.Replace(order, "990", "989", 1), answer{kind: kindAccepted, status: 201, order: "o1", fault: "*"}},
		{"other currency", 201, "", strings.Replace(order, "EUR", "CNY", 1), answer{kind: kindAccepted, status: 201, order: "o1", fault: "*"}},
		{"sold out", 409, "", `{"title":"no","code":"sold_out"}`, answer{kind: kindRefused, status: 409, code: "sold_out"}},
		{"spaced", 409, "", `{ "code" : "user_limit" }`, answer{kind: kindRefused, status: 409, code: "user_limit"}},
		{"escaped", 409, "", `{"detail":"\"code\":\"x\"","code":"a\u0062"}`, answer{kind: kindRefused, status: 409, code: "ab"}},
		{"no problem document", 404, "", `not found`, answer{kind: kindRefused, status: 404}},
		{"rate limited", 429, "Retry-After: 3", `{"code":"rate_limited"}`, answer{kind: kindBusy, status: 429, code: "rate_limited", retryAfter: 3 * time.Second}},
		{"overloaded", 503, "Retry-After: 99999999", `{"code":"overloaded"}`, answer{kind: kindBusy, status: 503, code: "overloaded", retryAfter: longestRetryAfter}},
		{"a date", 503, "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT", `{}`, answer{kind: kindBusy, status: 503}},
		{"slow request", 408, "", `{}`, answer{kind: kindUnknown, status: 408}},
		{"broken", 500, "", `{"code":"internal"}`, answer{kind: kindUnknown, status: 500, code: "internal"}},
		{"redirected", 307, "", ``, answer{kind: kindUnknown, status: 307}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := read(response(t, tt.status, tt.header, tt.body), want)
			if tt.want.fault == "*" && got.fault != "" {
				got.fault = "*"
			}
			if got != tt.want {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// response parses an answer in its form on the wire.
func response(t *testing.T, status int, header, body string) *wire.Response {
	t.Helper()
	client, server := net.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := server.Read(make([]byte, 1024))
		if header != "" {
			header += "\r\n"
		}
		_, werr := fmt.Fprintf(server, "HTTP/1.1 %d X\r\nContent-Length: %d\r\n%s\r\n%s", status, len(body), header, body)
		done <- errors.Join(err, werr, server.Close())
	}()
	c := wire.NewConn(client)
	t.Cleanup(func() {
		if err := errors.Join(<-done, c.Close()); err != nil {
			t.Error(err)
		}
	})
	res, err := c.Do([]byte("GET / HTTP/1.1\r\n\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestFailed(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"timeout":            fmt.Errorf("read: %w", os.ErrDeadlineExceeded),
		"connection_refused": &net.OpError{Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
		"connection_cut":     fmt.Errorf("read: %w", io.ErrUnexpectedEOF),
		"malformed":          fmt.Errorf("x: %w", wire.ErrProtocol),
		"network":            errors.New("something else"),
	} {
		if got := failed(err); got.code != want || got.kind != kindUnknown || got.status != 0 {
			t.Errorf("%v: got %+v, want %s", err, got, want)
		}
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	tests := []struct {
		attempt  int
		stated   time.Duration
		from, to time.Duration
	}{
		{0, 0, firstPause, firstPause * 5 / 4},
		{3, 0, 8 * firstPause, 10 * firstPause},
		{1000, 0, longPause, longPause * 5 / 4},
		// A wait that the service states is never shortened.
		{0, 3 * time.Second, 3 * time.Second, 3750 * time.Millisecond},
	}
	for _, tt := range tests {
		for range 100 {
			if got := pause(tt.attempt, tt.stated); got < tt.from || got > tt.to {
				t.Fatalf("pause(%d, %s) = %s, want %s to %s", tt.attempt, tt.stated, got, tt.from, tt.to)
			}
		}
	}
}
