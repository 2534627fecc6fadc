//go:build !unix

package backend

// LockFile does nothing where the kernel offers no such lock: running two
// embedded engines over one database is then the operator's to avoid.
func LockFile(string, string, string) (func() error, error) {
	return func() error { return nil }, nil
}
