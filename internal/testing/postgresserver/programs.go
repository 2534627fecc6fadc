package postgresserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Missing returns why no server can be started here, or nil.
func Missing() error {
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := Program(name); err != nil {
			return err
		}
	}
	_, err := owner()
	return err
}

// Program returns the path of one of the programs of Postgres, such as pg_dump. Debian keeps them
// out of PATH.
func Program(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", fmt.Errorf("no %s in PATH or /usr/lib/postgresql", name)
	}
	return slices.Max(found), nil
}

// asOwner makes cmd run as the user that owns the folder of a server, in that folder, and in a
// process group of its own. Ctrl-C then reaches only this program, which ends the server.
func asOwner(cmd *exec.Cmd, dir string) error {
	who, err := owner()
	if err != nil {
		return err
	}
	cmd.SysProcAttr = attributes(who)
	cmd.Dir = dir
	// The settings that a developer has for other servers.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "PG") })
	return nil
}

// newFolder returns a new folder that belongs to the user of the servers.
func newFolder(parent, pattern string) (string, error) {
	who, err := owner()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(parent, pattern)
	if err != nil || who == nil {
		return dir, err
	}
	return dir, os.Chown(dir, int(who.uid), int(who.gid))
}

// account is a user of the system.
type account struct{ uid, gid uint32 }
