//go:build unix

package redistest

import "flashsale/internal/testing/child"

// Pause stops the child (SIGSTOP) until Continue, with all its goroutines. On Linux it returns
// once the process has stopped; elsewhere the signal may still be pending.
func (c *Child) Pause() error { return child.Pause(c.cmd.Process, c.done) }

// Continue resumes a paused child (SIGCONT).
func (c *Child) Continue() error { return child.Continue(c.cmd.Process) }
