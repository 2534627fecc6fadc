//go:build !unix

package backend

// LockFile does nothing on systems without such a lock. The operator must then not run two
// embedded engines on one database.
func LockFile(string, string, string) (func() error, error) {
	return func() error { return nil }, nil
}
