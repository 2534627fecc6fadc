package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/targets"
	"flashsale/handler/auth"
)

const (
	// streamsBar is the memory that an event stream may cost the API process, in KiB.
	streamsBar = 20
	// streamsFirst is the number of streams that are open before the memory is first read, so
	// that one-time allocations do not count.
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
	api, err := m.world.Another(ctx, "--max-streams", strconv.Itoa(n))
	if err != nil {
		return err
	}
	defer api.Stop() //nolint:errcheck // it is ended by its process id, or has ended
	const item = "streams"
	if err := m.createItem(ctx, item, stock, 3600); err != nil {
		return err
	}
	ids, err := m.unpaid(ctx, api.Addr, item, n)
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
	if err := m.openStreams(ctx, api.Addr, ids, open[:streamsFirst]); err != nil {
		return err
	}
	before, err := api.Memory(ctx)
	if err != nil {
		return err
	}
	if err := m.openStreams(ctx, api.Addr, ids[streamsFirst:], open[streamsFirst:]); err != nil {
		return err
	}
	opened := api.Resident()
	for _, r := range open {
		if err := r.until(": "); err != nil {
			return fmt.Errorf("wait for a heartbeat: %w", err)
		}
	}
	after, err := api.Memory(ctx)
	if err != nil {
		return err
	}
	each := func(bytes float64) float64 { return bytes / float64(m.o.streams) / 1024 }
	fmt.Fprintf(m.out, "streams       %d open: %.1f KiB of heap and %.1f KiB of stack each; the process grew by %.1f KiB for each until all were open\n",
		m.o.streams, each(after.Heap-before.Heap), each(after.Stack-before.Stack), each(opened-before.Resident))
	targets.AtMost(m.out, "stream_kb", each(after.Heap+after.Stack-before.Heap-before.Stack), streamsBar)
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
		token, err := auth.SignToken([]byte(load.Secret), "bench", auth.RoleAdmin, time.Hour, time.Now())
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

// until reads up to a line that begins with the prefix.
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
