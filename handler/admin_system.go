package handler

import (
	"context"
	"strconv"
	"time"

	"flashsale/handler/encode"
)

// Unknown is the value of what the engine does not show to this service, such as the settings of a
// managed Redis that forbids CONFIG.
const Unknown = "unknown"

// System describes the program and the engines that it uses.
type System struct {
	Version, Revision, GoVersion string

	Database Engine
	Redis    Engine
	// RedisMode is embedded, standalone, sentinel or cluster.
	RedisMode string
	// RedisNodes is the number of masters; 0: unknown.
	RedisNodes int
	// RedisMemory is that of the fullest master; nil: unknown.
	RedisMemory *Memory
	// CheckedAt is when the engines were asked.
	CheckedAt time.Time
}

// Engine is a database or a Redis. Its texts may be Unknown.
type Engine struct {
	Name, Version string
	// Settings determine which data the engine keeps.
	Settings []Setting
}

// Setting is a setting of an engine. "mixed" says that nodes differ.
type Setting struct{ Name, Value string }

// Memory is a memory in bytes. A limit of 0 means none.
type Memory struct{ Used, Limit int64 }

// systemReader describes the system.
type systemReader interface {
	// System asks the engines, or returns a recent result, with Unknown for values that it cannot read.
	System(ctx context.Context) System
}

// systemRoutes describe the program and its engines.
type systemRoutes struct{ reader systemReader }

// show answers GET /v1/admin/system.
func (rs *systemRoutes) show(q *call) error {
	s := rs.reader.System(q.ctx())
	b := encode.TextField(q.out[:0], `{"version":`, s.Version)
	b = encode.TextField(b, `,"revision":`, s.Revision)
	b = encode.TextField(b, `,"go_version":`, s.GoVersion)
	b = append(appendEngine(append(b, `,"database":`...), &s.Database), '}')
	b = appendEngine(append(b, `,"redis":`...), &s.Redis)
	b = encode.TextField(b, `,"mode":`, s.RedisMode)
	b = append(b, `,"nodes":`...)
	b = appendKnown(b, int64(s.RedisNodes), s.RedisNodes > 0)
	var m Memory
	if s.RedisMemory != nil {
		m = *s.RedisMemory
	}
	b = appendKnown(append(b, `,"memory_used_bytes":`...), m.Used, s.RedisMemory != nil)
	b = appendKnown(append(b, `,"memory_limit_bytes":`...), m.Limit, s.RedisMemory != nil)
	q.out = append(encode.TimeField(b, `},"checked_at":`, s.CheckedAt), '}')
	return q.json(200)
}

// appendEngine appends an object without its end.
func appendEngine(b []byte, e *Engine) []byte {
	b = encode.TextField(b, `{"engine":`, e.Name)
	b = encode.TextField(b, `,"version":`, e.Version)
	b = append(b, `,"settings":{`...)
	for i, s := range e.Settings {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(encode.String(b, s.Name), ':')
		b = encode.String(b, s.Value)
	}
	return append(b, '}')
}

// appendKnown appends a number, or null.
func appendKnown(b []byte, n int64, known bool) []byte {
	if !known {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, n, 10)
}
