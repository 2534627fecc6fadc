package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// monitor counts the commands that clients send, as MONITOR lists them. What a
// script calls inside is listed too, marked "lua", and not counted. Marks sent
// with ECHO by another connection bound the window that counts, in the order in
// which Redis itself saw everything.
type monitor struct {
	conn   net.Conn
	result chan monitored
}

// monitored is what happened within the window.
type monitored struct {
	from traffic
	err  error
}

// traffic counts commands by the sender's address and by lower-case name.
type traffic map[string]map[string]int

// without adds up the commands by name, leaving out some addresses.
func (t traffic) without(left map[string]bool) map[string]int {
	sum := make(map[string]int)
	for addr, commands := range t {
		if left[addr] {
			continue
		}
		for name, n := range commands {
			sum[name] += n
		}
	}
	return sum
}

const (
	markBegin = "bench:begin"
	markEnd   = "bench:end"
)

// startMonitor begins to listen. The window must be over within limit.
func startMonitor(ctx context.Context, addr string, limit time.Duration) (*monitor, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	m := &monitor{conn: conn, result: make(chan monitored, 1)}
	r := bufio.NewReaderSize(conn, 1<<16)
	err = conn.SetDeadline(time.Now().Add(limit))
	if err == nil {
		_, err = conn.Write([]byte("MONITOR\r\n"))
	}
	if err == nil {
		var line string
		if line, err = r.ReadString('\n'); err == nil && line != "+OK\r\n" {
			err = fmt.Errorf("monitor: %q", line)
		}
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	go func() { m.result <- count(r) }()
	return m, nil
}

// begin opens the window.
func (m *monitor) begin(ctx context.Context, admin *redis.Client) error {
	return admin.Echo(ctx, markBegin).Err()
}

// end closes the window and returns what was sent within.
func (m *monitor) end(ctx context.Context, admin *redis.Client) (traffic, error) {
	if err := admin.Echo(ctx, markEnd).Err(); err != nil {
		return nil, err
	}
	r := <-m.result
	return r.from, r.err
}

// close ends the connection.
func (m *monitor) close() error { return m.conn.Close() }

// count reads lines of the form
//
//	+1700000000.123456 [0 127.0.0.1:40000] "evalsha" "..."
//
// from the mark of the begin to that of the end.
func count(r *bufio.Reader) monitored {
	sent := make(traffic)
	counting := false
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return monitored{err: fmt.Errorf("monitor: %w", err)}
		}
		from, command, ok := parseMonitor(line)
		switch {
		case !ok:
			return monitored{err: fmt.Errorf("monitor: unexpected line %q", line)}
		case from == "lua":
		case command == "echo" && strings.Contains(line, markBegin):
			counting = true
		case command == "echo" && strings.Contains(line, markEnd):
			return monitored{from: sent}
		case counting:
			if sent[from] == nil {
				sent[from] = make(map[string]int)
			}
			sent[from][command]++
		}
	}
}

// parseMonitor returns who sent a command, "lua" for a script, and its name.
func parseMonitor(line string) (from, command string, ok bool) {
	_, rest, ok1 := strings.Cut(line, "[")
	source, rest, ok2 := strings.Cut(rest, "] \"")
	command, _, ok3 := strings.Cut(rest, "\"")
	_, from, ok4 := strings.Cut(source, " ")
	return from, strings.ToLower(command), ok1 && ok2 && ok3 && ok4
}

// connections lists the addresses of a process's connections to Redis.
func connections(ctx context.Context, admin *redis.Client, process string) (map[string]bool, error) {
	list, err := admin.ClientList(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("client list: %w", err)
	}
	addrs := make(map[string]bool)
	for line := range strings.Lines(list) {
		fields := make(map[string]string)
		for field := range strings.FieldsSeq(line) {
			name, value, _ := strings.Cut(field, "=")
			fields[name] = value
		}
		if process != "" && fields["name"] == process {
			addrs[fields["addr"]] = true
		}
	}
	return addrs, nil
}
