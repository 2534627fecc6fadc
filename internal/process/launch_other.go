//go:build unix && !linux

package process

import "os/exec"

// launch starts cmd, calls exited in the background when it ends, and returns
// once it runs.
func launch(cmd *exec.Cmd, exited func(error)) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { exited(cmd.Wait()) }()
	return nil
}

// frozen cannot be told here without another program; see Pause.
func frozen(int) bool { return true }
