package embedded

import (
	"container/heap"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2/server"
)

// expiry deletes keys at the end of their time to live. When the clock of miniredis moves, it
// sorts all keys and looks at each, at every command: with 10,000 keys that takes milliseconds. So its
// clock stands still at the start of the server, each time to live is stored as the time from then
// to the key's deadline, and the deadlines are kept here in their order.
type expiry struct {
	start time.Time // the time that the clock of miniredis always shows; with a monotonic reading

	next atomic.Int64 // the time of the first entry, in milliseconds since 1970

	// The rest is used only under the lock of miniredis. Each key with a time to live has one entry,
	// which is not later than its deadline. Its key may have been deleted or have a later deadline since.
	queue entries
	known map[string]*entry
}

// entry is the time at which a key's deadline must be looked at.
type entry struct {
	key   string
	at    time.Time
	index int // in the heap
}

// entries is a heap, by time.
type entries []*entry

func (q entries) Len() int           { return len(q) }
func (q entries) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q entries) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push is called by package heap.
func (q *entries) Push(x any) {
	e := x.(*entry)
	e.index = len(*q)
	*q = append(*q, e)
}

// Pop is called by package heap.
func (q *entries) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return e
}

func newExpiry(start time.Time) *expiry {
	x := &expiry{start: start, known: make(map[string]*entry)}
	x.next.Store(math.MaxInt64)
	return x
}

// clock returns the time by which keys expire: it keeps an even pace when the system's clock is changed.
func (x *expiry) clock(now time.Time) time.Time { return x.start.Add(now.Sub(x.start)) }

// passed reports whether a deadline has passed. As in Redis, that is in the millisecond after it, so
// no key expires early although deadlines are in whole milliseconds.
func passed(deadline, now time.Time) bool { return now.UnixMilli() > deadline.UnixMilli() }

// look notes when the key must be looked at.
func (x *expiry) look(key string, at time.Time) {
	e := x.known[key]
	switch {
	case e == nil:
		e = &entry{key: key, at: at}
		x.known[key] = e
		heap.Push(&x.queue, e)
	case at.Before(e.at):
		e.at = at
		heap.Fix(&x.queue, e.index)
	}
	x.next.Store(x.queue[0].at.UnixMilli())
}

// due removes the first entry whose time has come.
func (x *expiry) due(now time.Time) (key string, ok bool) {
	if len(x.queue) == 0 || !passed(x.queue[0].at, now) {
		return "", false
	}
	e := heap.Pop(&x.queue).(*entry)
	delete(x.known, e.key)
	x.next.Store(math.MaxInt64)
	if len(x.queue) > 0 {
		x.next.Store(x.queue[0].at.UnixMilli())
	}
	return e.key, true
}

// waiting reports whether the time of an entry has come. It needs no lock.
func (x *expiry) waiting(now time.Time) bool { return x.clock(now).UnixMilli() > x.next.Load() }

// expire deletes the keys whose deadline has passed. The caller holds the lock of miniredis.
func (s *scripts) expire(now time.Time) {
	now = s.expiry.clock(now)
	for {
		key, ok := s.expiry.due(now)
		if !ok {
			return
		}
		deadline, found := s.deadline(key)
		switch {
		case !found: // the key was deleted, or kept
		case passed(deadline, now):
			s.dispatch("DEL", key)
		default:
			s.expiry.look(key, deadline)
		}
	}
}

// deadline returns when a key expires. The caller holds the lock of miniredis.
func (s *scripts) deadline(key string) (at time.Time, found bool) {
	ttl, found := s.field("ttl", key)
	if !found {
		return time.Time{}, false
	}
	return s.expiry.start.Add(time.Duration(ttl.Int())), true
}

// field returns the value of a key in one of the maps of the database.
func (s *scripts) field(name, key string) (value reflect.Value, found bool) {
	d := reflect.ValueOf(s.m).Elem().FieldByName("dbs").MapIndex(reflect.ValueOf(0))
	if !d.IsValid() {
		return reflect.Value{}, false
	}
	value = d.Elem().FieldByName(name).MapIndex(reflect.ValueOf(key))
	return value, value.IsValid()
}

// now is the time for a command inside a script. It stands still while a script of the interpreter runs.
func (s *scripts) now() time.Time {
	if s.running {
		return s.at
	}
	return time.Now()
}

// notOffered says why a command cannot run; empty: it can. queued means that the connection collects commands for a
// transaction.
func notOffered(cmd string, args []string, queued bool) string {
	switch cmd {
	case "HEXPIRE", "HPEXPIRE", "HEXPIREAT", "HPEXPIREAT", "HSETEX":
		return "ERR the fields of a hash cannot expire in the embedded engine"
	case "MOVE", "SWAPDB":
		return oneDatabase
	case "SELECT":
		if len(args) == 1 && args[0] != "0" {
			return oneDatabase
		}
	case "COPY":
		if len(args) > 2 && hasOption(args[2:], "DB") {
			return oneDatabase
		}
	}
	if queued && timed(cmd, args) && cmd != "XADD" {
		return "ERR " + cmd + " cannot be used in a transaction of the embedded engine"
	}
	return ""
}

const oneDatabase = "ERR the embedded engine has one database, number 0"

// timed reports whether a command reads the clock, or concerns the time to live of a key.
func timed(cmd string, args []string) bool {
	switch cmd {
	case "TIME", "TTL", "PTTL", "RENAME", "RENAMENX", "COPY", "XADD":
		return true
	}
	_, _, sets := absolute(cmd, args, time.Now())
	return sets
}

// atTime runs the timed commands inside scripts. It reports whether it has answered.
func (s *scripts) atTime(c *server.Peer, cmd string, args []string) bool {
	now := s.now()
	switch cmd {
	case "TIME":
		return writeTime(c, args, now)
	case "TTL", "PTTL":
		return s.writeTTL(c, cmd, args, s.expiry.clock(now))
	case "XADD":
		return s.date(c, args, now)
	case "RENAME", "RENAMENX", "COPY":
		if len(args) < 2 {
			return false
		}
		if deadline, found := s.deadline(args[0]); found {
			s.expiry.look(args[1], deadline)
		}
		return false
	}
	same, deadline, ok := absolute(cmd, args, s.expiry.clock(now))
	if !ok {
		return false
	}
	s.expiry.look(args[0], deadline)
	if same == nil {
		return false
	}
	s.srv.Dispatch(c, same)
	return true
}

// date runs an XADD of a new entry with the time of its id.
func (s *scripts) date(c *server.Peer, args []string, now time.Time) bool {
	dated := withID(args, now)
	if dated == nil {
		return false
	}
	s.srv.Dispatch(c, dated)
	return true
}

// withID returns an XADD of a new entry, "*", with the time of its id; nil if it has another id.
func withID(args []string, now time.Time) []string {
	i := 1
	for i+1 < len(args) {
		switch strings.ToUpper(args[i]) {
		case "NOMKSTREAM":
			i++
			continue
		case "MAXLEN", "MINID":
			i++
			if args[i] == "~" || args[i] == "=" {
				i++
			}
			i++
			continue
		case "LIMIT":
			i += 2
			continue
		}
		break
	}
	if i >= len(args) || args[i] != "*" {
		return nil
	}
	dated := append([]string{"XADD"}, args...)
	dated[i+1] = milliseconds(now) + "-*"
	return dated
}

// refuse answers with an error, which also ends a transaction.
func (s *scripts) refuse(c *server.Peer, text string) bool {
	invalid := discard()
	invalid.Ctx = c.Ctx
	s.srv.Dispatch(invalid, []string{"GET"}) // without its key: EXEC will fail
	c.WriteError(text)
	return true
}

func writeTime(c *server.Peer, args []string, now time.Time) bool {
	if len(args) != 0 {
		return false
	}
	c.WriteLen(2)
	c.WriteBulk(strconv.FormatInt(now.Unix(), 10))
	c.WriteBulk(strconv.FormatInt(int64(now.Nanosecond())/1000, 10))
	return true
}

// writeTTL answers TTL and PTTL for a key with a deadline.
func (s *scripts) writeTTL(c *server.Peer, cmd string, args []string, now time.Time) bool {
	if len(args) != 1 {
		return false
	}
	deadline, found := s.deadline(args[0])
	if !found {
		return false
	}
	left := max(0, deadline.UnixMilli()-now.UnixMilli())
	if cmd == "TTL" {
		left = (left + 500) / 1000
	}
	c.WriteInt(int(left))
	return true
}

// absolute returns when the key of a command expires, and the same command with that point in time
// instead of a time to live; nil if the command has it already. ok is false for a command
// without a valid time to live.
func absolute(cmd string, args []string, now time.Time) (same []string, deadline time.Time, ok bool) {
	switch cmd {
	case "EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT":
		if len(args) < 2 {
			return nil, deadline, false
		}
		unit := strings.TrimPrefix(cmd, "P")
		deadline, ok = pointInTime(args[1], cmd != unit, unit == "EXPIREAT", now)
		at := milliseconds(deadline)
		switch {
		case !ok:
			return nil, deadline, false
		case !deadline.After(now) && args[1] != "1":
			at = "1" // before the clock of miniredis, which therefore deletes the key
		case unit == "EXPIREAT":
			return nil, deadline, true
		}
		return append([]string{"PEXPIREAT", args[0], at}, args[2:]...), deadline, true
	case "SETEX", "PSETEX":
		if len(args) != 3 || strings.HasPrefix(args[1], "-") {
			return nil, deadline, false
		}
		deadline, ok = pointInTime(args[1], cmd == "PSETEX", false, now)
		return []string{"SET", args[0], args[2], "PXAT", milliseconds(deadline)}, deadline, ok && deadline.After(now)
	case "RESTORE":
		if len(args) < 3 || args[1] == "0" {
			return nil, deadline, false
		}
		deadline, ok = pointInTime(args[1], true, hasOption(args[3:], "ABSTTL"), now)
		if !ok || strings.HasPrefix(args[1], "-") { // miniredis refuses it
			return nil, deadline, false
		}
		deadline = notBefore(now, deadline)
		if args[1] == milliseconds(deadline) {
			return nil, deadline, true
		}
		return append([]string{cmd, args[0], milliseconds(deadline), args[2], "ABSTTL"}, args[3:]...), deadline, true
	}
	first := 1 // where the options begin
	switch cmd {
	case "SET":
		first = 2
	case "GETEX":
	default:
		return nil, deadline, false
	}
	for i := first; i+1 < len(args); i++ {
		option := strings.ToUpper(args[i])
		switch option {
		case "EX", "PX", "EXAT", "PXAT":
		default:
			continue
		}
		deadline, ok = pointInTime(args[i+1], option[0] == 'P', strings.HasSuffix(option, "AT"), now)
		if !ok || strings.HasPrefix(args[i+1], "-") || strings.Trim(args[i+1], "0") == "" { // miniredis refuses it
			return nil, deadline, false
		}
		deadline = notBefore(now, deadline)
		if option == "PXAT" && args[i+1] == milliseconds(deadline) {
			return nil, deadline, true
		}
		same = append([]string{cmd}, args...)
		same[i+1], same[i+2] = "PXAT", milliseconds(deadline)
		return same, deadline, true
	}
	return nil, deadline, false
}

// longest bounds a time to live, in milliseconds: about a century.
const longest = 100 * 366 * 24 * 3600 * 1000

// pointInTime reads a time in seconds or milliseconds, since 1970 or from now. It is not later than a century from now.
func pointInTime(text string, milli, sinceEpoch bool, now time.Time) (at time.Time, ok bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return at, false
	}
	if !milli {
		n = min(max(n, -longest), longest) * 1000
	}
	if !sinceEpoch {
		return now.Truncate(time.Millisecond).Add(time.Duration(min(max(n, -longest), longest)) * time.Millisecond), true
	}
	return time.UnixMilli(min(n, now.UnixMilli()+longest)), true
}

// notBefore returns the deadline, or the next millisecond if it has passed: for a time before its clock, miniredis stores
// a time to live that also applies to the next value of the key.
func notBefore(now, deadline time.Time) time.Time {
	if next := now.Truncate(time.Millisecond).Add(time.Millisecond); deadline.Before(next) {
		return next
	}
	return deadline
}

func milliseconds(at time.Time) string { return strconv.FormatInt(at.UnixMilli(), 10) }

func hasOption(args []string, name string) bool {
	for _, a := range args {
		if strings.EqualFold(a, name) {
			return true
		}
	}
	return false
}
