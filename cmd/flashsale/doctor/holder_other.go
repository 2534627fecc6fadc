//go:build !unix

package doctor

// lockHolder is unknown on this system.
func lockHolder(string) string { return "" }
