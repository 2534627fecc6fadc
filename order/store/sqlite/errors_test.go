package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
)

// An error of this package names it, and keeps its cause.
func TestNotWritable(t *testing.T) {
	t.Parallel()
	cause := fmt.Errorf("open shop.db: %w", fs.ErrPermission)
	err := notWritable(cause)
	if !errors.Is(err, ErrNotWritable) || !errors.Is(err, fs.ErrPermission) || !strings.HasPrefix(err.Error(), "sqlite: ") {
		t.Errorf("%v, want ErrNotWritable with its cause", err)
	}
	if other := errors.New("disk on fire"); notWritable(other) != other { //nolint:errorlint // unchanged
		t.Errorf("another cause: %v, want it unchanged", notWritable(other))
	}
}
