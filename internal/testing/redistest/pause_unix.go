//go:build unix

package redistest

import "flashsale/internal/testing/child"

// Pause freezes the child (SIGSTOP) until Continue, with all its goroutines. On
// Linux it returns once the process has come to rest; elsewhere the signal may
// still be on its way.
func (c *Child) Pause() error { return child.Pause(c.cmd.Process, c.done) }

// Continue lets a frozen child go on (SIGCONT).
func (c *Child) Continue() error { return child.Continue(c.cmd.Process) }
