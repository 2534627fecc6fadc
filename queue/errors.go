package queue

import (
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Sentinels of this package. Compare with errors.Is.
var (
	// ErrConfig: a setting or an argument is out of bounds.
	ErrConfig = errors.New("queue: invalid configuration")
	// ErrInvalidTask: a field of a task is out of bounds, or too many tasks follow one.
	ErrInvalidTask = errors.New("queue: invalid task")
	// ErrFull: the queue holds MaxLength entries.
	ErrFull = errors.New("queue: full")
	// ErrLeaseLost is the cause of a handler's context when a lease expired or another
	// worker has the task.
	ErrLeaseLost = errors.New("queue: lease lost")
	// ErrDraining is the cause of a handler's context at the end of RunConfig.Drain.
	ErrDraining = errors.New("queue: draining")
	// ErrTimeout is the cause of a handler's context at the end of Task.Timeout.
	ErrTimeout = errors.New("queue: task timed out")
	// ErrAbandoned: a handler ignored the end of its context. At the end of Run its
	// tasks were handed back; after a task's Timeout its attempt failed.
	ErrAbandoned = errors.New("queue: handler abandoned")
	// ErrTaskLost: tasks are in no state, for example after a manual command, so no
	// worker would take them. Run reports them to OnError and makes them ready.
	ErrTaskLost = errors.New("queue: tasks are in no state")
	// ErrDenied: Redis rejected the client's password, or its user lacks a permission
	// for the queue's scripts and commands.
	ErrDenied = errors.New("queue: redis denies access")
	// ErrReply: a script's reply has an unexpected form.
	ErrReply = errors.New("queue: unexpected reply")
)

// denied reports whether Redis rejected the client's password or permissions. The
// message for a command denied inside a script depends on the version of Redis.
func denied(err error) bool {
	return redis.IsAuthError(err) || redis.IsPermissionError(err) || strings.Contains(err.Error(), "user executing the script") ||
		strings.Contains(err.Error(), "ACL failure in script")
}
