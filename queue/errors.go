package queue

import (
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Sentinels of this package. Compare with errors.Is.
var (
	// ErrConfig: New or Run was given a setting outside its bounds.
	ErrConfig = errors.New("queue: invalid configuration")
	// ErrInvalidTask: a task has no id or too long a one, or a priority outside 0 to 9.
	ErrInvalidTask = errors.New("queue: invalid task")
	// ErrFull: the queue holds MaxLength tasks.
	ErrFull = errors.New("queue: full")
	// ErrLeaseLost is the cause with which a handler's context ends when its lease ran out or went to another worker.
	ErrLeaseLost = errors.New("queue: lease lost")
	// ErrDraining is the cause with which a handler's context ends when the time to drain is spent.
	ErrDraining = errors.New("queue: draining")
	// ErrTimeout is the cause with which a task's context ends when its own Timeout is over.
	ErrTimeout = errors.New("queue: task timed out")
	// ErrAbandoned: a handler that ignores its context was still running when Run ended, and its tasks were handed
	// back; or after its task's Timeout, and the attempt failed.
	ErrAbandoned = errors.New("queue: handler abandoned")
	// ErrDataLost: Redis forgot something of the queue, such as after a restart without
	// its file, or a failover to a replica that lagged. Run tells OnError; tasks that
	// are gone have to be added again by whoever knows of them.
	ErrDataLost = errors.New("queue: redis lost data")
	// ErrTaskLost: tasks are in no state, such as after a command given by hand, and no
	// worker would take them. Run reports them to OnError and makes them ready.
	ErrTaskLost = errors.New("queue: tasks are in no state")
	// ErrDenied: Redis refuses the client's password, or its user may not run the
	// queue's scripts and commands.
	ErrDenied = errors.New("queue: redis denies access")
	// ErrReply: Redis answered a script with something it cannot have returned.
	ErrReply = errors.New("queue: unexpected reply")
	// ErrRegistryFull: a Registry lists as many live workers as it may.
	ErrRegistryFull = errors.New("queue: too many workers")
)

// denied says that Redis refuses the client's password or permissions. A command
// that is denied inside a script has another text, which depends on Redis's version.
func denied(err error) bool {
	return redis.IsAuthError(err) || redis.IsPermissionError(err) || strings.Contains(err.Error(), "user executing the script") ||
		strings.Contains(err.Error(), "ACL failure in script")
}
