package store

// What only the external tests of this package use.

const (
	LargeLoad   = largeLoad
	LargeLoads  = largeLoads
	Loaders     = loaders
	LongReaders = longReaders
	Readers     = readers
)
