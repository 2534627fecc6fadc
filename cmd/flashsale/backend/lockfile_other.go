//go:build !unix

package backend

// lockFile does nothing on systems without such a lock. The operator must then not run another
// process on the database or data directory of an embedded engine.
func lockFile(string, bool) (*FileLock, error) { return &FileLock{}, nil }
