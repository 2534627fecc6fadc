//go:build !unix

package sqlite

// turnFile does not exist on systems without flock.
type turnFile struct{}

func openTurn(string) *turn { return nil }

func (turnFile) tryLock() bool { return false }

func (turnFile) unlock() {}

// Close does nothing.
func (turnFile) Close() error { return nil }
