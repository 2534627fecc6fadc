package lock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// The permissions that a Redis user needs, as the README states them.
const (
	aclCommands = "+eval +evalsha +get +mget +set +del +exists +pttl +pexpire +time " +
		"+zadd +zrem +zrange +zcard +hset +hget +hdel +hlen"
	aclChannels = "&lock:wake:* +publish +subscribe +ping"
)

// aclUser makes a Redis user with only these permissions on keys under prefix, and
// returns a client that logs in as this user.
func aclUser(t *testing.T, addr, user, prefix string, rules ...string) *redis.Client {
	t.Helper()
	admin := redis.NewClient(redistest.Options(addr))
	defer admin.Close()
	args := []any{"acl", "setuser", user, "reset", "on", ">secret", "~" + prefix + "*"}
	for _, r := range rules {
		for one := range strings.FieldsSeq(r) {
			args = append(args, one)
		}
	}
	must(t, admin.Do(t.Context(), args...).Err())
	o := redistest.Options(addr)
	o.Username, o.Password = user, "secret"
	rdb := redis.NewClient(o)
	closeAtEnd(t, rdb)
	return rdb
}

// Given Redis users with only the permissions that the README names, when a contended
// lock is released, then the waiters get it in their order: by message if the channels
// are allowed, otherwise by polling, which is reported. Keep-alives cannot wake them
// within the test, because they are minutes apart.
func TestManager_LeastPrivilege(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	for _, tc := range []struct {
		name, rules string
		mute        bool
	}{
		{"Channels", aclCommands + " " + aclChannels, false},
		{"NoChannels", aclCommands + " +publish +subscribe +ping", true},
		{"NoSubscribe", aclCommands, true},
		{"NoPublish", aclCommands + " &lock:wake:* +subscribe +ping", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ctx, prefix := await.Context(t), redistest.Prefix(t)
			rdb := aclUser(t, server.Addr(), "user-"+tc.name, prefix, tc.rules)
			var reports atomic.Int64
			cfg := slow
			cfg.Observer.CannotListen = func(err error) {
				if !redis.HasErrorPrefix(err, "NOPERM") {
					t.Errorf("reported: %v", err)
				}
				reports.Add(1)
			}
			holder, m := newManager(t, rdb, cfg), newManager(t, rdb, cfg)
			l := mustAcquire(t, holder, prefix+"item")
			var waiting []<-chan result
			for i := range 3 {
				waiting = append(waiting, acquireAsync(ctx, m, prefix+"item"))
				awaitWaiters(t, rdb, prefix+"item", int64(i+1))
			}
			last := l.Fence()
			mustRelease(t, l)
			for _, w := range waiting {
				l := awaitLock(t, w)
				if l.Fence() <= last {
					t.Errorf("fence %d after %d", l.Fence(), last)
				}
				last = l.Fence()
				renewNow(l)
				mustRelease(t, l)
			}
			if want := map[bool]int64{true: 1}[tc.mute]; reports.Load() != want || m.wake.mute.Load() != tc.mute {
				t.Errorf("%d reports, want %d; polls: %v", reports.Load(), want, m.wake.mute.Load())
			}
			check(t, m.Close(ctx))
		})
	}
}

// Given a holder that may not publish and a waiter that listens, when the lock is
// released, then the waiter gets it at its next keep-alive.
func TestLock_Release_PublishForbidden(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	prefix := redistest.Prefix(t)
	mute := aclUser(t, server.Addr(), "mute", prefix, aclCommands)
	full := aclUser(t, server.Addr(), "full", prefix, aclCommands, aclChannels)
	cfg := slow
	cfg.Liveness = 200 * time.Millisecond
	silent := slow
	silent.Observer.HandedOver = func(string) { t.Error("the lock was handed to a waiter that was not notified") }
	holder, m := newManager(t, mute, silent), newManager(t, full, cfg)
	l := mustAcquire(t, holder, prefix+"item")
	first := acquireAsync(await.Context(t), m, prefix+"item")
	awaitWaiters(t, full, prefix+"item", 1)
	second := acquireAsync(await.Context(t), m, prefix+"item")
	awaitWaiters(t, full, prefix+"item", 2)
	mustRelease(t, l)
	for range 2 {
		select {
		case r := <-first:
			first, l = nil, r.lock
		case r := <-second:
			second, l = nil, r.lock
		case <-time.After(patience):
			t.Fatal("no waiter was served")
		}
		if l == nil {
			t.Fatal("a wait failed")
		}
		mustRelease(t, l)
	}
}

// Given a permission that is granted later, when the manager subscribes again,
// then its waiters listen. The lack of the permission is reported once, and again after
// it was revoked.
func TestManager_LeastPrivilege_GrantedLater(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	prefix := redistest.Prefix(t)
	rdb := aclUser(t, server.Addr(), "later", prefix, aclCommands)
	var reports atomic.Int64
	cfg := slow
	cfg.Observer.CannotListen = func(error) { reports.Add(1) }
	m := newManager(t, rdb, cfg)
	for range 2 {
		if m.listenOnce() || !m.polls() || !strings.HasPrefix(m.newToken(), pollingMark) {
			t.Fatal("a manager without permission listens")
		}
	}
	if n := reports.Load(); n != 1 {
		t.Errorf("%d reports of two refusals, want one", n)
	}
	aclUser(t, server.Addr(), "later", prefix, aclCommands, aclChannels)
	m.wake.start.Do(func() { m.work.Go(m.listen) })
	await.True(t, "the manager listens", func() bool { return !m.polls() })
	if strings.HasPrefix(m.newToken(), pollingMark) {
		t.Error("its waiters still have polling tokens")
	}
	// Redis closes the connection of a subscriber that has lost its permission.
	aclUser(t, server.Addr(), "later", prefix, aclCommands)
	await.True(t, "the revoked permission is reported", func() bool { return reports.Load() == 2 })
	if !m.polls() {
		t.Error("the manager does not poll again")
	}
}

// Given a waiter that joined the queue while its manager had no permission to
// listen, when the permission is granted and the lock is released after that, then
// the waiter gets it: it gets no message, so it keeps polling. Its next keep-alive
// would be too late.
func TestManager_LeastPrivilege_GrantedWhileWaiting(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	prefix := redistest.Prefix(t)
	full := aclUser(t, server.Addr(), "granter", prefix, aclCommands, aclChannels)
	mute := aclUser(t, server.Addr(), "grantee", prefix, aclCommands)
	holder, m := newManager(t, full, slow), newManager(t, mute, slow)
	l := mustAcquire(t, holder, prefix+"item")
	if m.listenOnce() || !m.polls() {
		t.Fatal("a manager without permission listens")
	}
	ctx, cancel := context.WithCancel(await.Context(t))
	defer cancel()
	waiting := acquireAsync(ctx, m, prefix+"item")
	awaitWaiters(t, full, prefix+"item", 1)
	aclUser(t, server.Addr(), "grantee", prefix, aclCommands, aclChannels)
	// The manager would subscribe again on its own, after a longer pause.
	go m.listenOnce()
	await.True(t, "the manager listens", func() bool { return !m.polls() })
	select {
	case r := <-waiting:
		t.Fatalf("the waiter got a lock that is held: %+v", r)
	case <-time.After(4 * mutePoll): // it has polled since
	}
	mustRelease(t, l)
	select {
	case r := <-waiting:
		if r.err != nil {
			t.Fatal(r.err)
		}
		mustRelease(t, r.lock)
	case <-time.After(slow.Liveness / 2):
		t.Error("the waiter has not got the lock")
	}
}

// The README states the permissions that the tests above use.
func TestREADME_Permissions(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	must(t, err)
	for _, want := range []string{aclCommands, aclChannels} {
		if flat := strings.Join(strings.Fields(string(text)), " "); !strings.Contains(flat, want) {
			t.Errorf("the README does not state %q", want)
		}
	}
}

// Each row of the README's conformance table names tests, and they exist.
func TestREADME_Conformance(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	must(t, err)
	files, err := filepath.Glob("*_test.go")
	must(t, err)
	var tests strings.Builder
	for _, name := range files {
		code, err := os.ReadFile(name)
		must(t, err)
		tests.Write(code)
	}
	_, table, _ := strings.Cut(string(text), "| tests |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")[1:]
	if len(rows) < 20 {
		t.Fatalf("%d rows in the table", len(rows))
	}
	name := regexp.MustCompile("`(Test\\w+)`")
	for _, row := range rows {
		named := name.FindAllStringSubmatch(row, -1)
		if len(named) == 0 {
			t.Errorf("no test is named: %s", row)
		}
		for _, n := range named {
			if !strings.Contains(tests.String(), "func "+n[1]+"(") {
				t.Errorf("%s does not exist", n[1])
			}
		}
	}
}

// A missing permission is not reported as a key of another type.
func TestManager_Inspect_NotPermitted(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	for i, command := range []string{"get", "zcard", "hlen", "pttl"} {
		prefix := redistest.Prefix(t)
		rdb := aclUser(t, server.Addr(), "user-without-"+command, prefix, aclCommands, aclChannels, "-"+command)
		_, err := newManager(t, rdb, slow).Inspect(await.Context(t), prefix+strconv.Itoa(i))
		if err == nil || errors.Is(err, ErrForeignKey) {
			t.Errorf("without %s: %v", command, err)
		}
	}
}
