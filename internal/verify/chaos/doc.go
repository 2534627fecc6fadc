// Package chaos is the fault suite: it runs the service as real processes on a
// real Redis, sends it a crowd of buyers, does it one kind of harm after the
// other, and has the history of what the buyers were told compared with the
// database and Redis.
//
// Its tests are behind the build tag chaos; `make chaos` runs them, and
// docs/reliability.md says what each fault does. A fault is one file, whose
// init registers a value of type fault.
package chaos
