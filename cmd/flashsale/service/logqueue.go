package service

import (
	"bytes"
	"io"
	"time"
)

const (
	// logLines bounds the lines that wait for the reader of the log.
	logLines = 4096
	// logFlush bounds how long a process that stops waits for the reader of its log.
	logFlush = time.Second
)

// logQueue writes lines of the log in the background. A pipe whose reader has stopped, such as a
// pager or a stuck collector, blocks every write; without the queue, requests and the stop of the
// process would wait for it. If more than logLines wait, lines are dropped and counted.
type logQueue struct {
	lines chan []byte
	close chan struct{}
	done  chan struct{}
	// drops has the number of dropped lines, except while the number changes.
	drops chan int
}

// newLogQueue starts a queue of lines for to. report writes to it that lines were dropped.
func newLogQueue(to io.Writer, report func(dropped int)) *logQueue {
	q := &logQueue{
		lines: make(chan []byte, logLines), close: make(chan struct{}), done: make(chan struct{}), drops: make(chan int, 1),
	}
	q.drops <- 0
	go q.run(to, report)
	return q
}

// Write queues a line. It never blocks and never fails.
func (q *logQueue) Write(line []byte) (int, error) {
	select {
	case q.lines <- bytes.Clone(line): // the caller reuses its buffer
	default:
		q.drops <- <-q.drops + 1
	}
	return len(line), nil
}

func (q *logQueue) run(to io.Writer, report func(dropped int)) {
	defer close(q.done)
	for {
		select {
		case line := <-q.lines:
			q.write(to, line, report)
		case <-q.close:
			for len(q.lines) > 0 {
				q.write(to, <-q.lines, report)
			}
			return
		}
	}
}

// write writes a line, and then reports those that were dropped during the write. A write error
// has no better place to go.
func (q *logQueue) write(to io.Writer, line []byte, report func(dropped int)) {
	_, _ = to.Write(line)
	dropped := <-q.drops
	q.drops <- 0
	if dropped > 0 {
		report(dropped)
	}
}

// flush writes the lines that wait, and ends the queue. It gives up when patience ends.
func (q *logQueue) flush(patience <-chan time.Time) {
	close(q.close)
	select {
	case <-q.done:
	case <-patience:
	}
}
