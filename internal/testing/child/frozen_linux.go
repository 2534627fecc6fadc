package child

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// Frozen reports whether a signal has stopped all threads of a process, because the threads
// stop one after another. It returns false for a process that no longer exists.
func Frozen(pid int) (bool, error) {
	stats, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	if err != nil {
		return false, err
	}
	stopped := 0
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil // a thread has just ended; the caller polls again
		}
		if err != nil {
			return false, err
		}
		// "tid (name) S …": the name may contain any byte, including a bracket.
		_, state, found := bytes.Cut(b[bytes.LastIndexByte(b, ')')+1:], []byte(" "))
		if !found || !bytes.HasPrefix(state, []byte("T")) {
			return false, nil
		}
		stopped++
	}
	return stopped > 0, nil
}
