package contract

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// maxEvent bounds the bytes of one event.
const maxEvent = 1 << 20

// events checks a stream of server-sent events as it arrives.
type events struct {
	media *media
	rest  []byte // the beginning of an event
}

// add checks the events that a further part of the stream completes.
func (s *events) add(part []byte) error {
	s.rest = append(s.rest, part...)
	for {
		event, after, complete := bytes.Cut(s.rest, []byte("\n\n"))
		if !complete {
			break
		}
		if err := s.media.event(string(event)); err != nil {
			return err
		}
		s.rest = after
	}
	if len(s.rest) > maxEvent {
		return fmt.Errorf("an event has more than %d bytes", maxEvent)
	}
	return nil
}

// event checks one event: its fields, and its data against the schema of its name.
func (m *media) event(text string) error {
	name, data, numbered := "", "", false
	for line := range strings.SplitSeq(text, "\n") {
		field, value, found := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "" || field == "" && found: // a comment
		case field == "retry" || field == "id":
			if _, err := strconv.ParseUint(value, 10, 63); err != nil {
				return fmt.Errorf("the field %s of an event is %q", field, value)
			}
			numbered = numbered || field == "id"
		case field == "event":
			name = value
		case field == "data":
			data = value
		default:
			return fmt.Errorf("an event has the line %q", line)
		}
	}
	if name == "" && data == "" {
		return nil
	}
	s := m.events[name]
	if s == nil || numbered == m.unnumbered {
		return fmt.Errorf("the event %q is not documented, or has no id; or it has one that is not documented", text)
	}
	value, err := readJSON([]byte(data))
	if err == nil {
		err = s.validate(value)
	}
	if err != nil {
		return fmt.Errorf("the event %q: %w: %.2000s", name, err, data)
	}
	return nil
}
