//go:build unix

package postgresserver

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// owner is the user that servers run as: nil for that of this process, and the user postgres
// for root, as which neither Postgres nor PgBouncer runs.
func owner() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // no account means that of this process
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("it does not run as root: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &account{uid: uint32(uid), gid: uint32(gid)}, nil
}

func attributes(who *account) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if who != nil {
		a.Credential = &syscall.Credential{Uid: who.uid, Gid: who.gid}
	}
	return a
}
