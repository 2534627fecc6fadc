package queue

import (
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const maxType = 64 // bytes of Task.Type

// options is the part of a task's meta that says how it is to be treated; see
// lua/fragment_common.lua. It is "" or begins with a comma.
func (t *Task) options() string {
	if t.Type == "" && t.MaxAttempts == 0 && t.Timeout == 0 {
		return ""
	}
	var b strings.Builder
	if t.Type != "" {
		b.WriteString(",y" + url.QueryEscape(t.Type))
	}
	if t.MaxAttempts > 0 {
		b.WriteString(",m" + strconv.Itoa(t.MaxAttempts))
	}
	if t.Timeout > 0 {
		b.WriteString(",t" + strconv.FormatInt(ceilMillis(t.Timeout), 10))
	}
	return b.String()
}

// Options are how a task is to be treated, as its producer said.
type Options struct {
	Type        string        // Task.Type
	MaxAttempts int           // Task.MaxAttempts; 0 for the queue's
	Timeout     time.Duration // Task.Timeout; 0 for none
}

// parseOptions reads what options wrote. What the scripts add for themselves, and
// options of a later version, are passed over.
func parseOptions(text string) (o Options, err error) {
	if text == "" {
		return o, nil
	}
	for part := range strings.SplitSeq(text[1:], ",") {
		if part == "" {
			continue
		}
		value := part[1:]
		switch part[0] {
		case 'y':
			o.Type, err = url.QueryUnescape(value)
		case 'm':
			o.MaxAttempts, err = strconv.Atoi(value)
		case 't':
			var ms int64
			ms, err = strconv.ParseInt(value, 10, 64)
			o.Timeout = time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
		}
		if err != nil {
			return o, fmt.Errorf("%w: option %q: %w", ErrReply, part, err)
		}
	}
	return o, nil
}

func (t *Task) validateOptions() error {
	switch {
	case len(t.Type) > maxType:
		return fmt.Errorf("%w: task %q has a type of %d bytes, want at most %d", ErrInvalidTask, t.ID, len(t.Type), maxType)
	case t.MaxAttempts < 0 || t.MaxAttempts > maxAttemptCap:
		return fmt.Errorf("%w: task %q has MaxAttempts %d, want 0 to %d", ErrInvalidTask, t.ID, t.MaxAttempts, maxAttemptCap)
	case t.Timeout < 0:
		return fmt.Errorf("%w: task %q has a negative Timeout %v", ErrInvalidTask, t.ID, t.Timeout)
	}
	return nil
}
