//go:build !unix

package main

// lockFile does nothing where the kernel offers no such lock: running two
// embedded engines over one database is then the operator's to avoid.
func lockFile(string, string, string) (func() error, error) {
	return func() error { return nil }, nil
}
