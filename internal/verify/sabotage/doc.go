// Package sabotage tests the history checker with builds of the service that break a promise.
// Each has one source change, which is not in any file of the repository, and gets the fault
// against which the changed code protects. The checker must find the broken promise, and must
// find nothing in the unaltered build under the same fault.
//
// Its tests have the build tag chaos:
//
//	go test -tags chaos ./internal/verify/sabotage
package sabotage
