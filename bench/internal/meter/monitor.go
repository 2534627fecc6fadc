package meter

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/bench/internal/stats"
)

// Monitor counts the commands that clients send, as MONITOR lists them. Calls inside scripts
// are listed too, marked "lua", and not counted. Marks that another connection sends with ECHO
// bound the window that counts, in the order in which Redis received all commands.
type Monitor struct {
	conn   net.Conn
	window chan result
}

// result is the traffic within the window.
type result struct {
	from Traffic
	err  error
}

// Traffic counts commands by the sender's address and by lower-case name.
type Traffic map[string]map[string]int

// Without adds up the commands by name, leaving out some addresses.
func (t Traffic) Without(left map[string]bool) map[string]int {
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

// StartMonitor starts the monitor. The window must end within limit.
func StartMonitor(ctx context.Context, addr string, limit time.Duration) (*Monitor, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	m := &Monitor{conn: conn, window: make(chan result, 1)}
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
	go func() { m.window <- count(r) }()
	return m, nil
}

// Begin opens the window.
func (m *Monitor) Begin(ctx context.Context, admin *redis.Client) error {
	return admin.Echo(ctx, markBegin).Err()
}

// End closes the window and returns the commands sent within it.
func (m *Monitor) End(ctx context.Context, admin *redis.Client) (Traffic, error) {
	if err := admin.Echo(ctx, markEnd).Err(); err != nil {
		return nil, err
	}
	r := <-m.window
	return r.from, r.err
}

// Close ends the connection.
func (m *Monitor) Close() error { return m.conn.Close() }

// count reads lines of the form
//
//	+1700000000.123456 [0 127.0.0.1:40000] "evalsha" "..."
//
// from the mark of the begin to that of the end.
func count(r *bufio.Reader) result {
	sent := make(Traffic)
	counting := false
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return result{err: fmt.Errorf("monitor: %w", err)}
		}
		from, command, ok := parseMonitor(line)
		switch {
		case !ok:
			return result{err: fmt.Errorf("monitor: unexpected line %q", line)}
		case from == "lua":
		case command == "echo" && strings.Contains(line, markBegin):
			counting = true
		case command == "echo" && strings.Contains(line, markEnd):
			return result{from: sent}
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

// Connections lists the addresses of a process's connections to Redis.
func Connections(ctx context.Context, admin *redis.Client, process string) (map[string]bool, error) {
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

// Breakdown lists commands by name, most frequent first, each divided by n.
func Breakdown(sent map[string]int, n float64) string {
	names := slices.SortedFunc(maps.Keys(sent), func(a, b string) int {
		return cmp.Or(cmp.Compare(sent[b], sent[a]), cmp.Compare(a, b))
	})
	parts := make([]string, 0, len(names))
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %.2f", name, stats.Ratio(float64(sent[name]), n)))
	}
	return strings.Join(parts, ", ")
}
