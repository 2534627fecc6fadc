package queue

// AckStatus is Status.
type AckStatus = Status

// The former names of some statuses.
const (
	Unknown = StatusUnknown
	Done    = StatusOK
	Stale   = StatusStale
	Missing = StatusMissing
	NoRoom  = StatusFull
)
