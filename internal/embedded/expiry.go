package embedded

import (
	"container/heap"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2/server"
)

// expiry deletes keys at the end of their time to live. When the clock of miniredis moves, it
// sorts all keys and looks at each, at every command: with 10,000 keys that takes milliseconds. So its
// clock stands still at the start of the server, each time to live is stored as the time from then
// to the key's deadline, and the deadlines are kept here in their order.
type expiry struct {
	start time.Time // the time at which the clock of miniredis stands; with a monotonic reading

	mu sync.Mutex
	// Each key with a time to live has one entry, which is not later than its deadline.
	// Its key may have been deleted or have a later deadline since.
	queue entries
	known map[place]*entry
}

// place is a key in one of the databases.
type place struct {
	db  int
	key string
}

// entry is the time at which a key's deadline must be looked at.
type entry struct {
	place
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

// clock returns the time by which keys expire: it keeps an even pace when the system's clock is changed.
func (x *expiry) clock(now time.Time) time.Time { return x.start.Add(now.Sub(x.start)) }

// passed reports whether a deadline has passed. As in Redis, that is in the millisecond after it, so
// no key expires early although deadlines are in whole milliseconds.
func passed(deadline, now time.Time) bool { return now.UnixMilli() > deadline.UnixMilli() }

// look notes that the key must be looked at at a time.
func (x *expiry) look(p place, at time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.known[p]
	switch {
	case e == nil:
		e = &entry{place: p, at: at}
		x.known[p] = e
		heap.Push(&x.queue, e)
	case at.Before(e.at):
		e.at = at
		heap.Fix(&x.queue, e.index)
	}
}

// due removes the first entry whose time has come.
func (x *expiry) due(now time.Time) (p place, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.queue) == 0 || !passed(x.queue[0].at, now) {
		return place{}, false
	}
	e := heap.Pop(&x.queue).(*entry)
	delete(x.known, e.place)
	return e.place, true
}

// waiting reports whether the time of an entry has come.
func (x *expiry) waiting(now time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.queue) > 0 && passed(x.queue[0].at, x.clock(now))
}

// expire deletes the keys whose deadline has passed. The caller holds the lock of miniredis.
func (s *scripts) expire(now time.Time) {
	now = s.expiry.clock(now)
	for {
		p, ok := s.expiry.due(now)
		if !ok {
			return
		}
		deadline, found := s.deadline(p)
		switch {
		case !found: // the key was deleted, or kept
		case !passed(deadline, now):
			s.expiry.look(p, deadline)
		case p.db == 0:
			s.srv.Dispatch(s.quiet(), []string{"DEL", p.key})
		default:
			s.srv.Dispatch(s.quiet(), []string{"SELECT", strconv.Itoa(p.db)})
			s.srv.Dispatch(s.quiet(), []string{"DEL", p.key})
			s.srv.Dispatch(s.quiet(), []string{"SELECT", "0"})
		}
	}
}

// quiet returns a connection inside scripts whose replies are lost.
func (s *scripts) quiet() *server.Peer {
	c := discard()
	c.Ctx = s.inside.Ctx
	return c
}

// deadline returns when a key expires. The caller holds the lock of miniredis.
func (s *scripts) deadline(p place) (at time.Time, found bool) {
	ttl, found := s.field(p.db, "ttl", p.key)
	if !found {
		return time.Time{}, false
	}
	return s.expiry.start.Add(time.Duration(ttl.Int())), true
}

// field returns the value of a key in one of the maps of a database.
func (s *scripts) field(db int, name, key string) (value reflect.Value, found bool) {
	d := reflect.ValueOf(s.m).Elem().FieldByName("dbs").MapIndex(reflect.ValueOf(db))
	if !d.IsValid() {
		return reflect.Value{}, false
	}
	value = d.Elem().FieldByName(name).MapIndex(reflect.ValueOf(key))
	return value, value.IsValid()
}

// now is the time for commands. It stands still while a script runs.
func (s *scripts) now(nested bool) time.Time {
	if nested && s.running {
		return s.at
	}
	return time.Now()
}

// timed runs the commands that read the clock or concern the time to live of a key. It reports
// whether it has answered. db is the connection's database; queued means that the connection collects commands
// for a transaction.
func (s *scripts) timed(c *server.Peer, cmd string, args []string, nested, queued bool, db int) bool {
	now := s.now(nested)
	switch cmd {
	case "TIME", "TTL", "PTTL":
		if queued {
			return s.refuse(c, "ERR "+cmd+" cannot be used in a transaction of the embedded engine")
		}
		if cmd == "TIME" {
			return writeTime(c, args, now)
		}
		return s.writeTTL(c, cmd, args, nested, db, s.expiry.clock(now))
	case "HEXPIRE", "HPEXPIRE", "HEXPIREAT", "HPEXPIREAT":
		return s.refuse(c, "ERR the fields of a hash cannot expire in the embedded engine")
	case "SET", "SETEX", "PSETEX", "EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "GETEX", "RESTORE":
		same, deadline, ok := absolute(cmd, args, s.expiry.clock(now))
		if !ok {
			return false
		}
		s.expiry.look(place{db, args[0]}, deadline)
		if same == nil {
			return false
		}
		s.srv.Dispatch(c, same)
		return true
	case "XADD":
		dated := withID(args, now)
		if dated == nil {
			return false
		}
		s.srv.Dispatch(c, dated)
		return true
	case "RENAME", "RENAMENX", "COPY":
		if len(args) < 2 {
			return false
		}
		if !nested {
			s.m.Lock()
			defer s.m.Unlock()
		}
		if deadline, found := s.deadline(place{db, args[0]}); found {
			s.expiry.look(place{db, args[1]}, deadline)
		}
	}
	return false
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
func (s *scripts) writeTTL(c *server.Peer, cmd string, args []string, nested bool, db int, now time.Time) bool {
	if len(args) != 1 {
		return false
	}
	if !nested {
		s.m.Lock()
		defer s.m.Unlock()
	}
	deadline, found := s.deadline(place{db, args[0]})
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
		isAbsolute := hasOption(args[3:], "ABSTTL")
		deadline, ok = pointInTime(args[1], true, isAbsolute, now)
		if !ok || isAbsolute {
			return nil, deadline, ok
		}
		return append([]string{cmd, args[0], milliseconds(deadline), args[2], "ABSTTL"}, args[3:]...), deadline, true
	}
	first := 2 // SET key value
	if cmd == "GETEX" {
		first = 1
	}
	for i := first; i+1 < len(args); i++ {
		option := strings.ToUpper(args[i])
		switch option {
		case "EX", "PX", "EXAT", "PXAT":
		default:
			continue
		}
		isAbsolute := strings.HasSuffix(option, "AT")
		deadline, ok = pointInTime(args[i+1], option[0] == 'P', isAbsolute, now)
		if !ok || isAbsolute || !deadline.After(now) { // miniredis refuses a time to live that is not positive
			return nil, deadline, ok
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
		return now.Truncate(time.Millisecond).Add(time.Duration(min(n, longest)) * time.Millisecond), true
	}
	return time.UnixMilli(min(n, now.UnixMilli()+longest)), true
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
