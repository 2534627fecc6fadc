// Package sabotage tests the history checker on builds of the service that break
// a promise: each is made with one change of its source, which exists in no file
// of the repository, and suffers the fault that the changed place is there for.
// The checker must find what is broken, and nothing in the unaltered build under
// the same fault.
//
// Its tests are behind the build tag chaos:
//
//	go test -tags chaos ./internal/verify/sabotage
package sabotage
