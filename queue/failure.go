package queue

import (
	"strings"

	"github.com/redis/go-redis/v9"
)

// failed calls OnFailure for the attempts that count.
func (s *source) failed(back []Rejection) {
	if s.r.cfg.OnFailure == nil {
		return
	}
	for i := range back {
		r := &back[i]
		if r.cause == nil || r.Uncounted {
			continue
		}
		bound := s.Queue.cfg.MaxAttempts
		if n := r.Task.MaxAttempts; n > 0 {
			bound = n
		}
		s.r.cfg.OnFailure(r.Task, r.cause, r.Dead || r.Task.Attempt >= bound)
	}
}

// denied says that Redis refuses the client's password or permissions. A command
// that is denied inside a script has another text, which depends on Redis's version.
func denied(err error) bool {
	return redis.IsAuthError(err) || redis.IsPermissionError(err) || strings.Contains(err.Error(), "user executing the script") ||
		strings.Contains(err.Error(), "ACL failure in script")
}
