package embedded

import (
	"bufio"
	"bytes"
	"crypto/sha1" //nolint:gosec // the name that Redis gives to scripts
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// scripts runs the Lua scripts of a server. miniredis creates an interpreter with all its
// libraries for each call, which takes several times as long as a script of this service.
// Here one interpreter runs all scripts, one after the other, as in Redis; miniredis runs those
// that need more than it offers.
type scripts struct {
	m   *miniredis.Miniredis
	srv *server.Server

	expiry *expiry

	mu    sync.Mutex
	known map[string]*lua.FunctionProto // by SHA-1; miniredis knows them, too

	context contextFields

	// The rest is used only under the lock of miniredis.
	state  *lua.LState
	inside *server.Peer // which calls the commands of scripts
	out    bytes.Buffer // their replies
	writer *bufio.Writer
	long   longStrings
	// A script runs, and has begun at this time.
	running bool
	at      time.Time
}

// errScripts says that miniredis does not run scripts in the way on which this package relies.
var errScripts = errors.New("scripts cannot be run")

// contextFields are the indexes of the fields of a connection's context that decide who
// runs its scripts. miniredis does not export them.
type contextFields struct{ nested, transaction int }

// newScripts takes over the scripts of a started server.
func newScripts(m *miniredis.Miniredis, now time.Time) (*scripts, error) {
	s := &scripts{m: m, srv: m.Server(), known: make(map[string]*lua.FunctionProto)}
	s.writer, s.long.buffers = bufio.NewWriter(&s.out), make(map[string]*strings.Builder)
	s.inside = server.NewPeer(s.writer)
	// A command of a script needs the context of a connection inside a script, which only
	// miniredis can create. It has no state of its own.
	s.srv.SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
		if cmd == "PING" {
			s.inside.Ctx = c.Ctx
		}
		return false
	})
	s.srv.Dispatch(discard(), []string{"EVAL", "return redis.call('PING')", "0"})
	if s.inside.Ctx == nil {
		return nil, errScripts
	}
	for name, f := range map[string]struct {
		kind  reflect.Kind
		index *int
	}{
		"nested": {reflect.Bool, &s.context.nested}, "transaction": {reflect.Slice, &s.context.transaction},
	} {
		field, found := reflect.TypeOf(s.inside.Ctx).Elem().FieldByName(name)
		if !found || field.Type.Kind() != f.kind || len(field.Index) != 1 {
			return nil, fmt.Errorf("%w: the context of a connection has no field %s", errScripts, name)
		}
		*f.index = field.Index[0]
	}
	s.expiry = newExpiry(now)
	m.SetTime(s.expiry.start)
	if !s.checkFields() {
		return nil, fmt.Errorf("%w: the maps of a database are not found", errScripts)
	}
	var err error
	if s.state, err = s.newState(); err != nil {
		return nil, err
	}
	s.srv.SetPreHook(s.hook)
	return s, nil
}

// discard returns a connection whose replies are lost.
func discard() *server.Peer { return server.NewPeer(bufio.NewWriter(io.Discard)) }

// newState creates the interpreter. As in Redis, scripts cannot create global variables, so
// one cannot affect the next.
func (s *scripts) newState() (*lua.LState, error) {
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	for name, open := range map[string]lua.LGFunction{
		lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath,
	} {
		if err := l.CallByParam(lua.P{Fn: l.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			return nil, fmt.Errorf("%w: open library %q: %w", errScripts, name, err)
		}
	}
	l.SetGlobal("redis", l.SetFuncs(l.NewTable(), map[string]lua.LGFunction{
		"call":  func(l *lua.LState) int { return s.call(l, true) },
		"pcall": func(l *lua.LState) int { return s.call(l, false) },
		"error_reply": func(l *lua.LState) int {
			l.Push(errorTable(l.CheckString(1)))
			return 1
		},
	}))
	refuse := func(what string) *lua.LFunction {
		return l.NewFunction(func(l *lua.LState) int {
			l.RaiseError("Script attempted to %s '%s'", what, l.Get(2).String())
			return 0
		})
	}
	l.SetMetatable(l.G.Global, l.SetFuncs(l.NewTable(), nil))
	if meta, ok := l.GetMetatable(l.G.Global).(*lua.LTable); ok {
		meta.RawSetString("__newindex", refuse("create global variable"))
		meta.RawSetString("__index", refuse("access nonexistent global variable"))
	}
	return l, nil
}

// checkFields reports whether the maps that this package reads are found. They are not exported, and
// may change with the version of miniredis.
func (s *scripts) checkFields() (found bool) {
	defer func() {
		if recover() != nil { // a field that does not exist or has another type
			found = false
		}
	}()
	const key, text = "embedded:check", "stored"
	s.srv.Dispatch(discard(), []string{"SET", key, text, "PX", "60000"})
	value, hasValue := s.stored(key)
	_, hasDeadline := s.deadline(key)
	s.srv.Dispatch(discard(), []string{"DEL", key})
	return hasValue && value == text && hasDeadline
}

// hook runs before each command. It reports whether it has answered.
func (s *scripts) hook(c *server.Peer, cmd string, args ...string) bool {
	nested, queued := s.contextOf(c)
	if text := notOffered(cmd, args, queued); text != "" {
		return s.refuse(c, text)
	}
	if nested {
		return s.atTime(c, cmd, args)
	}
	if now := time.Now(); s.expiry.waiting(now) {
		s.m.Lock()
		s.expire(now)
		s.m.Unlock()
	}
	switch {
	case cmd == "SCRIPT":
		s.script(args)
	case queued:
		return cmd == "XADD" && s.date(c, args, time.Now())
	case timed(cmd, args):
		s.runSingle(c, cmd, args)
		return true
	case len(args) < 2:
	case cmd == "EVALSHA":
		s.mu.Lock()
		p := s.known[args[0]]
		s.mu.Unlock()
		return p != nil && s.run(c, p, args[0], args[1:])
	case cmd == "EVAL":
		if sha, p, isNew := s.learn(args[0]); p != nil {
			if isNew { // so that EVALSHA, EXISTS and the scripts of transactions find it
				s.srv.Dispatch(discard(), []string{"SCRIPT", "LOAD", args[0]})
			}
			return s.run(c, p, sha, args[1:])
		}
	}
	return false
}

// contextOf reports whether a connection is that of a script's commands, and whether it collects
// commands for a transaction.
func (s *scripts) contextOf(c *server.Peer) (nested, queued bool) {
	if c.Ctx == nil { // before its first command
		return false, false
	}
	ctx := reflect.ValueOf(c.Ctx).Elem()
	return ctx.Field(s.context.nested).Bool(), !ctx.Field(s.context.transaction).IsNil()
}

// begin starts a script: the time stands still, and the keys whose deadline has passed are gone.
// The caller holds the lock of miniredis.
func (s *scripts) begin() {
	s.running, s.at = true, time.Now()
	s.expire(s.at)
}

// runSingle runs a timed command like a script of one command. Otherwise another command could run between the look
// at the clock and the command.
func (s *scripts) runSingle(c *server.Peer, cmd string, args []string) {
	s.m.Lock()
	s.begin()
	s.inside.Resp3 = c.Resp3
	text := string(s.dispatch(append([]string{cmd}, args...)...))
	s.inside.Resp3, s.running = false, false
	s.m.Unlock()
	c.WriteRaw(text)
}

func (s *scripts) script(args []string) {
	if len(args) == 0 {
		return
	}
	switch strings.ToUpper(args[0]) {
	case "FLUSH":
		s.mu.Lock()
		clear(s.known)
		s.mu.Unlock()
	case "LOAD":
		if len(args) == 2 {
			s.learn(args[1])
		}
	}
}

// learn compiles a script that is not known. p is nil if it must be left to miniredis.
func (s *scripts) learn(text string) (sha string, p *lua.FunctionProto, isNew bool) {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // as above
	sha = hex.EncodeToString(sum[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.known[sha]; known != nil {
		return sha, known, false
	}
	if !supported(text) {
		return sha, nil, true
	}
	chunk, err := parse.Parse(strings.NewReader(text), "user_script")
	if err != nil {
		return sha, nil, true
	}
	if p, err = lua.Compile(chunk, "user_script"); err != nil {
		return sha, nil, true
	}
	s.known[sha] = p
	return sha, p, true
}

// missing matches uses of functions that the interpreter does not have.
var missing = regexp.MustCompile(`\b(?:cjson|cmsgpack|bit|struct|os|server|coroutine|debug|package|io)\s*[.\[]|` +
	`\b(?:require|load|loadstring|loadfile|dofile|getfenv|setfenv)\s*\(|` +
	`\bredis\s*(?:\[|\.\s*(?:log|status_reply|sha1hex|replicate_commands|set_repl|setresp|breakpoint|debug|acl_check_cmd|[A-Z]))`)

// comment matches a comment that ends with its line.
var comment = regexp.MustCompile(`(?m)--.*$`)

// supported reports whether the interpreter has everything that a script may use.
func supported(text string) bool { return !missing.MatchString(comment.ReplaceAllString(text, "")) }

// refused are the commands that a script must not call: they wait, or change the connection, which
// all scripts share.
var refused = map[string]bool{
	"AUTH": true, "BLMOVE": true, "BLMPOP": true, "BLPOP": true, "BRPOP": true, "BRPOPLPUSH": true, "BZMPOP": true, "BZPOPMAX": true,
	"BZPOPMIN": true, "CLIENT": true, "DISCARD": true, "EXEC": true, "HELLO": true, "MULTI": true, "PSUBSCRIBE": true, "QUIT": true,
	"RESET": true, "SELECT": true, "SUBSCRIBE": true, "UNWATCH": true, "WAIT": true, "WATCH": true, "XREAD": true, "XREADGROUP": true,
}

// run runs a script and writes its reply. args begins with the number of keys.
func (s *scripts) run(c *server.Peer, p *lua.FunctionProto, sha string, args []string) bool {
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 0 || n > len(args)-1 {
		return false
	}
	s.m.Lock()
	defer s.m.Unlock()
	s.begin()
	defer func() { s.running = false }()
	l := s.state
	globals := l.G.Global
	globals.RawSetString("KEYS", textTable(l, args[1:1+n]))
	globals.RawSetString("ARGV", textTable(l, args[1+n:]))
	defer l.SetTop(0)
	l.Push(l.NewFunctionFromProto(p))
	if err := l.PCall(0, 1, nil); err != nil {
		c.WriteError(errorText(err, sha))
		return true
	}
	reply(c, l.Get(1))
	return true
}

func textTable(l *lua.LState, list []string) *lua.LTable {
	t := l.CreateTable(len(list), 0)
	for i, text := range list {
		t.RawSetInt(i+1, lua.LString(text))
	}
	return t
}

// errorText is the reply for a script that failed, in the form of Redis 7.
func errorText(err error, sha string) string {
	var failed *lua.ApiError
	if errors.As(err, &failed) {
		if t, ok := failed.Object.(*lua.LTable); ok {
			if text, ok := t.RawGetString("err").(lua.LString); ok {
				return string(text) + " script: " + sha
			}
		}
		if failed.Object != nil {
			return "ERR " + oneLine(failed.Object.String()) + " script: " + sha
		}
	}
	return "ERR " + oneLine(err.Error()) + " script: " + sha
}

// oneLine keeps the first line: an error reply has only one.
func oneLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func errorTable(text string) *lua.LTable {
	t := &lua.LTable{}
	if !strings.Contains(text, " ") {
		text = "ERR " + text
	}
	t.RawSetString("err", lua.LString(strings.TrimPrefix(text, "-")))
	return t
}

// reply writes what a script has returned.
func reply(c *server.Peer, value lua.LValue) {
	switch v := value.(type) {
	case lua.LBool:
		if v {
			c.WriteInt(1)
		} else {
			c.WriteNull()
		}
	case lua.LNumber:
		c.WriteInt(int(v))
	case lua.LString:
		c.WriteBulk(string(v))
	case *lua.LTable:
		if text, ok := v.RawGetString("err").(lua.LString); ok {
			c.WriteError(string(text))
			return
		}
		if text, ok := v.RawGetString("ok").(lua.LString); ok {
			c.WriteInline(string(text))
			return
		}
		n := 0
		for v.RawGetInt(n+1) != lua.LNil {
			n++
		}
		c.WriteLen(n)
		for i := range n {
			reply(c, v.RawGetInt(i+1))
		}
	default:
		c.WriteNull()
	}
}

// call is redis.call, and redis.pcall if an error is returned instead of raised.
func (s *scripts) call(l *lua.LState, raise bool) int {
	args := make([]string, l.GetTop())
	for i := range args {
		switch v := l.Get(i + 1).(type) {
		case lua.LString:
			args[i] = string(v)
		case lua.LNumber:
			args[i] = v.String()
		default:
			l.RaiseError("Lua redis lib command arguments must be strings or integers")
		}
	}
	if len(args) == 0 {
		l.RaiseError("Please specify at least one argument for this redis lib call")
	}
	if refused[strings.ToUpper(args[0])] {
		return s.fail(l, "ERR This Redis command is not allowed from script", raise)
	}
	if len(args) == 3 && strings.EqualFold(args[0], "APPEND") {
		if n, done := s.appendLong(l, args[1], args[2]); done {
			l.Push(lua.LNumber(n))
			return 1
		}
	}
	value, err := s.do(l, args...)
	if err != nil {
		l.RaiseError("%s %s", args[0], err.Error())
	}
	if t, ok := value.(*lua.LTable); ok && raise && t.RawGetString("err") != lua.LNil {
		l.Error(t, 1)
	}
	l.Push(value)
	return 1
}

// do runs a command and returns its reply.
func (s *scripts) do(l *lua.LState, args ...string) (lua.LValue, error) {
	value, _, err := parseReply(l, s.dispatch(args...))
	return value, err
}

// dispatch runs a command inside a script and returns its reply, until the next call. The caller holds the lock of
// miniredis.
func (s *scripts) dispatch(args ...string) []byte {
	s.out.Reset()
	s.writer.Reset(&s.out) // a command that panicked may have left something
	s.srv.Dispatch(s.inside, args)
	_ = s.writer.Flush() //nolint:errcheck // a bytes.Buffer takes everything
	return s.out.Bytes()
}

// fail raises an error, or returns it.
func (s *scripts) fail(l *lua.LState, text string, raise bool) int {
	if raise {
		l.Error(errorTable(text), 1)
	}
	l.Push(errorTable(text))
	return 1
}

// errReply says that a command's reply cannot be read.
var errReply = errors.New("the reply is malformed")

// parseReply converts the first RESP2 value of a reply for Lua, and returns what follows it.
func parseReply(l *lua.LState, b []byte) (lua.LValue, []byte, error) {
	end := bytes.Index(b, []byte("\r\n"))
	if end < 1 {
		return nil, nil, errReply
	}
	line, rest := string(b[1:end]), b[end+2:]
	switch b[0] {
	case '+':
		t := &lua.LTable{}
		t.RawSetString("ok", lua.LString(line))
		return t, rest, nil
	case '-':
		t := &lua.LTable{}
		t.RawSetString("err", lua.LString(line))
		return t, rest, nil
	}
	n, err := strconv.ParseInt(line, 10, 64)
	switch {
	case err != nil:
		return nil, nil, errReply
	case b[0] == ':':
		return lua.LNumber(n), rest, nil
	case n < 0:
		return lua.LFalse, rest, nil
	case b[0] == '$':
		if int64(len(rest)) < n+2 {
			return nil, nil, errReply
		}
		return lua.LString(rest[:n]), rest[n+2:], nil
	case b[0] != '*':
		return nil, nil, errReply
	}
	t := l.CreateTable(int(n), 0)
	for i := range int(n) {
		var value lua.LValue
		if value, rest, err = parseReply(l, rest); err != nil {
			return nil, nil, err
		}
		t.RawSetInt(i+1, value)
	}
	return t, rest, nil
}
