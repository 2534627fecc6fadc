// Package process holds the processes that a benchmark starts, and reads what they use.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"flashsale/internal/pause"
	"flashsale/internal/testing/child"
	"flashsale/internal/testing/freeport"
)

// Process is one process of the run. It is ended by its process id.
type Process struct {
	Name  string
	PID   int
	Addr  string          // host and port of the API
	Ops   string          // host and port of metrics and profiles
	Ended <-chan struct{} // closed when it has ended
}

// Launch starts a command as a process that does not outlive this one.
func Launch(name string, cmd *exec.Cmd, addr, ops string) (*Process, error) {
	ended := make(chan struct{})
	p := &Process{Name: name, Addr: addr, Ops: ops, Ended: ended}
	// The exit status is ignored: a signal ends the process.
	if err := child.Start(cmd, func(error) { close(ended) }); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.PID = cmd.Process.Pid
	return p, nil
}

// Ready waits until the process answers GET /readyz with 200, for 10 s at the most.
func (c *Process) Ready(ctx context.Context) error {
	var last string
	for began := time.Now(); time.Since(began) < 10*time.Second; {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.Addr+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			body, rerr := io.ReadAll(res.Body)
			err = errors.Join(rerr, res.Body.Close())
			if res.StatusCode == http.StatusOK {
				return err
			}
			last = string(body)
		} else {
			last = err.Error()
		}
		if err := pause.OrCause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s was not ready within 10 s: %s", c.Name, last)
}

// Gone reports whether the process has ended.
func (c *Process) Gone() bool {
	select {
	case <-c.Ended:
		return true
	default:
		return false
	}
}

// stopWithin is how long a process may take to end after SIGTERM.
const stopWithin = 20 * time.Second

// Stop ends the process with SIGTERM, and with SIGKILL if that takes too long.
func (c *Process) Stop() error {
	if c == nil {
		return nil
	}
	if c.Gone() {
		return nil // its id may be another process's by now
	}
	p, err := os.FindProcess(c.PID)
	if err != nil {
		return err
	}
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	timer := time.NewTimer(stopWithin)
	defer timer.Stop()
	select {
	case <-c.Ended:
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s did not stop within %v", c.Name, stopWithin), p.Kill())
	}
}

// Kill ends the process with SIGKILL and returns once it has ended. A process that has ended
// already is no error.
func (c *Process) Kill() error {
	if c.Gone() {
		return nil // its id may be another process's by now
	}
	p, err := os.FindProcess(c.PID)
	if err != nil {
		return err
	}
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", c.Name, err)
	}
	<-c.Ended
	return nil
}

// FreeAddr is a loopback address that nothing listens on. Without a free port it
// names port 0, on which no process becomes ready.
func FreeAddr() string {
	addr, err := freeport.Addr()
	if err != nil {
		return "127.0.0.1:0"
	}
	return addr
}

// tick is the unit in which the system counts processor time.
const tick = 10 * time.Millisecond

// CPU is the processor time the process has used so far; 0 where the system
// does not report it.
func (c *Process) CPU() time.Duration {
	own, _ := processorTime(c.PID)
	return own
}

// CPUOf is the processor time that these processes have used so far, and that of their children
// that have ended; 0 where the system does not report it.
func CPUOf(pids ...int) (sum time.Duration) {
	for _, pid := range pids {
		own, children := processorTime(pid)
		sum += own + children
	}
	return sum
}

// processorTime is what a process has used, and what its children had used when they ended.
func processorTime(pid int) (own, children time.Duration) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0
	}
	// The command's name, in parentheses, may contain spaces.
	_, rest, ok := strings.Cut(string(text), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 15 {
		return 0, 0
	}
	var ticks [4]int64 // user and system time, twice
	for i := range ticks {
		if ticks[i], err = strconv.ParseInt(f[11+i], 10, 64); err != nil {
			return 0, 0
		}
	}
	return time.Duration(ticks[0]+ticks[1]) * tick, time.Duration(ticks[2]+ticks[3]) * tick
}

// MachineCPU is the processor time that all processes and the hypervisor have used since the
// machine was started; 0 where the system does not report it.
func MachineCPU() (sum time.Duration) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(first) {
		if i == 0 || i == 4 || i == 5 || i > 8 {
			continue // the name, idle time, and the guests' time, which is in the user time
		}
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0
		}
		sum += time.Duration(n) * tick
	}
	return sum
}

// Written is how many bytes the process has caused to be written to storage; 0 where
// the system does not report it.
func (c *Process) Written() float64 {
	return InfoNumber(c.io(), "write_bytes")
}

// Moved is how many bytes the process has read and written in system calls, of files and
// connections; 0 where the system does not report it.
func (c *Process) Moved() float64 {
	text := c.io()
	return InfoNumber(text, "rchar") + InfoNumber(text, "wchar")
}

// io is what the system reports of the process's input and output.
func (c *Process) io() string {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.PID), "io"))
	if err != nil {
		return ""
	}
	return string(text)
}

// Resident is the memory of the process that is in RAM, in bytes.
func (c *Process) Resident() float64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(c.PID) + "/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var kb float64
		if _, err := fmt.Sscanf(line, "VmRSS: %f kB", &kb); err == nil {
			return kb * 1024
		}
	}
	return 0
}

// Memory is what a process holds, in bytes.
type Memory struct {
	Heap, Stack float64 // in use, after a garbage collection
	Resident    float64 // before it, as the system counts it; 0 where the system does not report it
}

// Memory collects the process's garbage and reads what is left.
func (c *Process) Memory(ctx context.Context) (m Memory, err error) {
	m.Resident = c.Resident()
	for range 2 { // pools free what they hold at the second collection
		if _, err := Get(ctx, "http://"+c.Ops+"/debug/pprof/heap?gc=1"); err != nil {
			return m, err
		}
	}
	text, err := Get(ctx, "http://"+c.Ops+"/metrics")
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch name {
		case "go_memstats_heap_inuse_bytes":
			m.Heap, err = strconv.ParseFloat(value, 64)
		case "go_memstats_stack_inuse_bytes":
			m.Stack, err = strconv.ParseFloat(value, 64)
		}
		if err != nil {
			return m, err
		}
	}
	if m.Heap == 0 || m.Stack == 0 {
		return m, errors.New("the metrics say nothing of the memory in use")
	}
	return m, nil
}

// Profile writes a CPU profile of the process to a file, whose folder it creates, while the load
// runs.
func (c *Process) Profile(ctx context.Context, path string, d time.Duration) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", c.Ops, max(1, int(d.Seconds())))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return errors.Join(err, res.Body.Close())
	}
	_, err = io.Copy(f, res.Body)
	return errors.Join(err, f.Close(), res.Body.Close())
}

// Get returns the body of a GET. A status other than 200 is an error.
func Get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, res.Status)
	}
	return text, errors.Join(err, res.Body.Close())
}

// InfoNumber reads the value of a line "name:value"; 0 when there is none.
func InfoNumber(text, name string) float64 {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && key == name {
			if n, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
				return n
			}
		}
	}
	return 0
}
