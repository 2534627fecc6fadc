package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"flashsale/bench/internal/targets"
	"flashsale/handler/auth"
)

const (
	// streamsBar is the memory that an event stream may cost the API process, in KiB.
	streamsBar = 20
	// streamsFirst is the number of streams that are open before the memory is first
	// read, so that what the first ones set up counts for none.
	streamsFirst = 100
	// streamsStep bounds a step of opening a stream; the longest is the wait for a
	// heartbeat.
	streamsStep = time.Minute
)

// measureStreams opens event streams of unpaid orders, each of a buyer of its own, waits
// until each has sent a heartbeat, and prints what each costs the API process:
// heap and stacks after a garbage collection.
func measureStreams(ctx context.Context, m *meter) error {
	n := streamsFirst + m.o.streams
	api, err := m.world.another(ctx, "--max-streams", strconv.Itoa(n))
	if err != nil {
		return err
	}
	defer api.stop() //nolint:errcheck // it is ended by its process id, or has ended
	const item = "streams"
	if err := m.createItem(ctx, item, stock, 3600); err != nil {
		return err
	}
	ids, err := m.unpaid(ctx, api.addr, item, n)
	if err != nil {
		return err
	}
	open := make([]*eventReader, n)
	defer func() {
		for _, r := range open {
			if r != nil {
				r.conn.Close() //nolint:errcheck // it has only been read
			}
		}
	}()
	if err := m.openStreams(ctx, api.addr, ids, open[:streamsFirst]); err != nil {
		return err
	}
	before, err := api.memory(ctx)
	if err != nil {
		return err
	}
	if err := m.openStreams(ctx, api.addr, ids[streamsFirst:], open[streamsFirst:]); err != nil {
		return err
	}
	opened := api.resident()
	for _, r := range open {
		if err := r.until(": "); err != nil {
			return fmt.Errorf("wait for a heartbeat: %w", err)
		}
	}
	after, err := api.memory(ctx)
	if err != nil {
		return err
	}
	each := func(bytes float64) float64 { return bytes / float64(m.o.streams) / 1024 }
	fmt.Fprintf(m.out, "streams       %d open: %.1f KiB of heap and %.1f KiB of stack each; the process grew by %.1f KiB for each until all were open\n",
		m.o.streams, each(after.heap-before.heap), each(after.stack-before.stack), each(opened-before.resident))
	targets.AtMost(m.out, "stream_kb", each(after.heap+after.stack-before.heap-before.stack), streamsBar)
	return nil
}

// unpaid buys n units, each as a buyer of its own, and returns the orders' ids.
func (m *meter) unpaid(ctx context.Context, addr, item string, n int) ([]string, error) {
	ids := make([]string, n)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(m.o.connections)
	for i := range ids {
		g.Go(func() (err error) {
			ids[i], err = m.buyOne(ctx, addr, item, i)
			return err
		})
	}
	return ids, g.Wait()
}

// eventReader reads one event stream.
type eventReader struct {
	conn net.Conn
	in   *bufio.Reader
}

// openStreams opens a stream for each order and reads its first event.
func (m *meter) openStreams(ctx context.Context, addr string, ids []string, into []*eventReader) error {
	for i := range into {
		token, err := auth.SignToken([]byte(secret), "bench", auth.RoleAdmin, time.Hour, time.Now())
		if err != nil {
			return err
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		into[i] = &eventReader{conn: conn, in: bufio.NewReaderSize(conn, 1024)}
		_, err = io.WriteString(conn, "GET /v1/orders/"+ids[i]+"/events HTTP/1.1\r\nHost: "+addr+
			"\r\nAccept: text/event-stream\r\nCache-Control: no-cache\r\nAuthorization: Bearer "+token+"\r\n\r\n")
		if err == nil {
			err = into[i].until("data: ")
		}
		if err != nil {
			return fmt.Errorf("open stream %d: %w", i, err)
		}
	}
	return nil
}

// until reads up to a line that begins so.
func (r *eventReader) until(prefix string) error {
	if err := r.conn.SetReadDeadline(time.Now().Add(streamsStep)); err != nil {
		return err
	}
	for {
		line, err := r.in.ReadString('\n')
		if err != nil {
			return err
		}
		if strings.HasPrefix(line, prefix) {
			return nil
		}
		if strings.HasPrefix(line, "HTTP/1.1 ") && !strings.HasPrefix(line, "HTTP/1.1 200 ") {
			return errors.New(strings.TrimSpace(line))
		}
	}
}

// memory is what a process holds, in bytes.
type memory struct {
	heap, stack float64 // in use, after a garbage collection
	resident    float64 // before it, as the system counts it; 0 where it does not tell
}

// memory collects the process's garbage and asks what is left.
func (c *process) memory(ctx context.Context) (m memory, err error) {
	m.resident = c.resident()
	for range 2 { // what pools hold is let go by the second
		if _, err := get(ctx, "http://"+c.ops+"/debug/pprof/heap?gc=1"); err != nil {
			return m, err
		}
	}
	text, err := get(ctx, "http://"+c.ops+"/metrics")
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch name {
		case "go_memstats_heap_inuse_bytes":
			m.heap, err = strconv.ParseFloat(value, 64)
		case "go_memstats_stack_inuse_bytes":
			m.stack, err = strconv.ParseFloat(value, 64)
		}
		if err != nil {
			return m, err
		}
	}
	if m.heap == 0 || m.stack == 0 {
		return m, errors.New("the metrics say nothing of the memory in use")
	}
	return m, nil
}

// resident is the memory of the process that is in RAM, in bytes.
func (c *process) resident() float64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(c.pid) + "/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var kb float64
		if _, err := fmt.Sscanf(line, "VmRSS: %f kB", &kb); err == nil {
			return kb * 1024
		}
	}
	return 0
}

// get reads what an operator's address answers.
func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, res.Status)
	}
	return text, errors.Join(err, res.Body.Close())
}
