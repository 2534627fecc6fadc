package lock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// MultiLock is a handle on several locks held together.
type MultiLock struct {
	locks []*Lock // in the order in which they were taken
}

// AcquireAll waits for the locks of several resources and returns when all are held, or
// none. It takes them one after the other in the order of their keys, whatever the order
// of the arguments, so that two calls for the same resources cannot deadlock. Waiting for
// locks in any other order while holding one can deadlock. The TTL of each lock starts
// when it is taken, the wait limit covers all of them, and duplicates count once. The
// errors are those of Acquire, with the resource that failed, and of releasing the others.
func (m *Manager) AcquireAll(ctx context.Context, resources []string, opts ...Option) (*MultiLock, error) {
	ordered, err := m.inOrder(resources)
	if err != nil {
		return nil, opError("acquire all", "", err)
	}
	set, _ := m.settle(opts) //nolint:errcheck // Acquire returns it
	until := time.Now().Add(set.waitLimit)
	opts = append(slices.Clip(opts), nil) // the last one is the rest of the limit
	all := &MultiLock{}
	for _, resource := range ordered {
		if set.waitLimit > 0 {
			// An expired limit fails as a wait timeout.
			opts[len(opts)-1] = WithWaitLimit(max(time.Until(until), 1))
		}
		// The wait for the next lock ends if a held one is lost.
		l, err := m.Acquire(ctx, resource, opts...)
		if err != nil {
			return nil, errors.Join(err, all.Release(ctx))
		}
		all.locks = append(all.locks, l)
		ctx = l.Context()
	}
	return all, nil
}

// inOrder sorts the resources by their keys and removes duplicates.
func (m *Manager) inOrder(resources []string) ([]string, error) {
	if len(resources) == 0 {
		return nil, fmt.Errorf("%w resources: there is none", ErrInvalid)
	}
	byKey := make(map[string]string, len(resources))
	for _, r := range resources {
		k, err := keysOf(m.cfg.Prefix, r)
		if err != nil {
			return nil, err
		}
		byKey[k[keyLock]] = r
	}
	ordered := make([]string, 0, len(byKey))
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		ordered = append(ordered, byKey[key])
	}
	return ordered, nil
}

// Context ends when any of the locks does, with its cause. It carries the
// values of the context that acquired them, and an acquire on it can re-enter
// each of them.
func (l *MultiLock) Context() context.Context {
	return l.locks[len(l.locks)-1].Context() // it comes from those of the others
}

// Locks returns the handles of the locks, in the order in which they were taken: of their
// keys, without duplicates.
func (l *MultiLock) Locks() []*Lock { return slices.Clone(l.locks) }

// Release releases the locks, the last one taken first. The error joins theirs;
// those that failed may be released again. On a nil MultiLock it is ErrNotHeld.
func (l *MultiLock) Release(ctx context.Context) error {
	if l == nil {
		return opError("release", "", ErrNotHeld)
	}
	var errs []error
	for _, one := range slices.Backward(l.locks) {
		errs = append(errs, one.Release(ctx))
	}
	return errors.Join(errs...)
}
