package store

// What only the external tests of this package use.

const (
	LargeLoad   = largeLoad
	LargeLoads  = largeLoads
	Loaders     = loaders
	LockWait    = lockWait
	LongReaders = longReaders
	Readers     = readers
)
