package child

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// Frozen reports whether a process is stopped by a signal: all of its threads,
// for each comes to rest by itself. A process that is gone is not.
func Frozen(pid int) (bool, error) {
	stats, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	if err != nil {
		return false, err
	}
	stopped := 0
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil // a thread has just ended; look again
		}
		if err != nil {
			return false, err
		}
		// "tid (name) S …": the name may hold anything, even a bracket.
		_, state, found := bytes.Cut(b[bytes.LastIndexByte(b, ')')+1:], []byte(" "))
		if !found || !bytes.HasPrefix(state, []byte("T")) {
			return false, nil
		}
		stopped++
	}
	return stopped > 0, nil
}
