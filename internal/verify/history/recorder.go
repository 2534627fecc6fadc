package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Recorder writes a history: one line of JSON for each call. It is safe for concurrent use.
type Recorder struct {
	began time.Time

	mu     sync.Mutex
	lines  *bufio.Writer
	closer io.Closer // nil: the caller closes the writer
	count  int64
	err    error // the first failure; nothing is written after it
}

// NewRecorder returns a recorder that writes to w. The clock of the run starts at zero now.
func NewRecorder(w io.Writer) *Recorder {
	return &Recorder{began: time.Now(), lines: bufio.NewWriterSize(w, 256<<10)}
}

// Create writes to a new file. It fails if the file exists, so that no earlier history is lost.
func Create(path string) (*Recorder, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("history: create: %w", err)
	}
	r := NewRecorder(f)
	r.closer = f
	return r, nil
}

// Now is the time since the beginning of the run in nanoseconds, for Call.Start and Call.End.
// It is monotonic.
func (r *Recorder) Now() int64 { return int64(time.Since(r.began)) }

// Record adds a call. Flush and Close return its errors.
func (r *Recorder) Record(c *Call) {
	line, err := json.Marshal(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return
	}
	if err == nil {
		_, err = r.lines.Write(append(line, '\n'))
	}
	if err != nil {
		r.err = fmt.Errorf("history: record: %w", err)
		return
	}
	r.count++
}

// Count is the number of calls recorded.
func (r *Recorder) Count() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// Flush writes everything recorded to the writer. It returns the first failure since the
// beginning.
func (r *Recorder) Flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	if err := r.lines.Flush(); err != nil {
		r.err = fmt.Errorf("history: flush: %w", err)
	}
	return r.err
}

// Close flushes and closes the file that Create made. No call may be recorded after it.
func (r *Recorder) Close() error {
	err := r.Flush()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closer != nil {
		if closed := r.closer.Close(); closed != nil {
			err = errors.Join(err, fmt.Errorf("history: close: %w", closed))
		}
		r.closer = nil
	}
	if r.err == nil {
		r.err = errClosed
	}
	return err
}

var errClosed = errors.New("history: the recorder is closed")
