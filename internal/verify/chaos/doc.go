// Package chaos is the fault suite. It runs the service as real processes with a real Redis,
// sends purchases of many buyers, injects one fault after another, and compares the history of
// the answers with the database and Redis.
//
// Its tests have the build tag chaos; `make chaos` runs them, and docs/reliability.md describes
// each fault. A fault is one file, whose init registers a value of type fault.
package chaos
