package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// frozen reports whether the process is stopped by a signal. A process that is
// gone is not.
func frozen(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// "pid (name) state …"; the name may hold any character, ')' included.
	rest := string(b[strings.LastIndexByte(string(b), ')')+1:])
	var state string
	if n, err := fmt.Sscan(rest, &state); n != 1 || err != nil {
		return false
	}
	return state == "T"
}
