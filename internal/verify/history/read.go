package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// ErrDamaged means that a history was not written by a Recorder, or is incomplete.
var ErrDamaged = errors.New("history: damaged")

// maxLine bounds one call: a key has 255 characters, an id 128.
const maxLine = 64 << 10

// ReadFile reads the history in a file. An error names the file and the line.
func ReadFile(path string) ([]Call, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("history: read: %w", err)
	}
	defer f.Close() //nolint:errcheck // nothing was written
	return Read(f, path)
}

// Read reads a history to its end. Errors contain the name.
func Read(r io.Reader, name string) ([]Call, error) {
	var calls []Call
	in := bufio.NewReaderSize(r, maxLine)
	for number := 1; ; number++ {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return calls, nil
		case errors.Is(err, io.EOF):
			return nil, damaged(name, number, errors.New("the line is cut off: its writer was not closed"))
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, damaged(name, number, fmt.Errorf("the line is longer than %d bytes", maxLine))
		case err != nil:
			return nil, fmt.Errorf("history: read %s:%d: %w", name, number, err)
		}
		c, err := parse(line)
		if err != nil {
			return nil, damaged(name, number, err)
		}
		calls = append(calls, c)
	}
}

func damaged(name string, number int, cause error) error {
	return fmt.Errorf("%w: %s:%d: %w", ErrDamaged, name, number, cause)
}

// parse reads one line. It refuses unknown fields: another version of the checker wrote them,
// and they may matter.
func parse(line []byte) (Call, error) {
	var c Call
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, err
	}
	if d.More() {
		return c, errors.New("something follows the call")
	}
	err := c.valid()
	return c, err
}

// valid refuses calls that cannot be judged.
func (c *Call) valid() error {
	switch c.Op {
	case Buy, Restock:
		if c.Key == "" {
			return fmt.Errorf("field key is missing from a call %q", c.Op)
		}
		if c.Quantity == 0 {
			return fmt.Errorf("field quantity is missing from a call %q", c.Op)
		}
	case Pay, Cancel, Refund, Get, Pause, Resume, Close:
	default:
		return fmt.Errorf("field op is %q, which is no operation", c.Op)
	}
	switch {
	case c.Op == Buy && (c.User == "" || c.Item == ""):
		return errors.New("field user or item is missing from a purchase")
	case c.Start < 0 || c.End < c.Start:
		return fmt.Errorf("field end_ns is %d, before start_ns %d", c.End, c.Start)
	case c.Status < 0 || c.Status > 599:
		return fmt.Errorf("field status is %d, which is no HTTP status", c.Status)
	}
	return nil
}

// ReadFinal reads the end of a run from a file written by WriteFinal.
func ReadFinal(path string) (*Final, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("history: read final: %w", err)
	}
	defer f.Close() //nolint:errcheck // nothing was written
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	final := new(Final)
	if err := d.Decode(final); err != nil {
		return nil, fmt.Errorf("%w: %s: byte %d: %w", ErrDamaged, path, d.InputOffset(), err)
	}
	return final, nil
}

// WriteFinal writes the end of a run to a file, so that Check can be repeated later.
func WriteFinal(path string, final *Final) error {
	text, err := json.MarshalIndent(final, "", " ")
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("history: write final: %w", err)
	}
	return nil
}
