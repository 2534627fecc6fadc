//go:build !unix

package main

// lockDataDir does nothing where the kernel offers no such lock: running two
// embedded engines over one data directory is then the operator's to avoid.
func lockDataDir(string) (func() error, error) { return func() error { return nil }, nil }
