package postgresserver

import (
	"context"
	"errors"
	"os"
	"os/exec"
)

// folder is a temporary folder that is also removed when this process ends without any
// clean-up, as after a panic or a kill.
type folder struct {
	path    string
	alive   *os.File // closing it, as the kernel does at the end of this process, starts removal
	remover *exec.Cmd
}

// removeAtEnd waits for the end of its input and then removes the folder. A server removes the
// file postmaster.pid when it has ended. If it does not, its folder is removed nevertheless.
const removeAtEnd = `
read -r _
n=0
while [ -e "$0/data/postmaster.pid" ] && [ $n -lt 100 ]; do sleep 0.1; n=$((n+1)); done
until rm -rf -- "$0" || [ $n -ge 200 ]; do sleep 0.1; n=$((n+1)); done
`

func openFolder(ctx context.Context, parent, pattern string) (f *folder, err error) {
	path, err := newFolder(parent, pattern)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	f = &folder{path: path, alive: w}
	// It must outlive this process.
	f.remover = exec.CommandContext(context.WithoutCancel(ctx), "sh", "-c", removeAtEnd, path)
	f.remover.Stdin = r
	f.remover.SysProcAttr = attributes(nil)
	err = errors.Join(f.remover.Start(), r.Close())
	if err != nil {
		return nil, errors.Join(err, w.Close(), os.RemoveAll(path))
	}
	return f, nil
}

// close removes the folder. Its server must have ended.
func (f *folder) close() error {
	return errors.Join(os.RemoveAll(f.path), f.alive.Close(), f.remover.Wait())
}
