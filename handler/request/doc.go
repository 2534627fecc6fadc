// Package request reads what a client sends, strictly: headers (header.go), query parameters
// (query.go) and JSON bodies (body.go, fields.go, text.go). A reader that guesses would hide a
// client's mistake, and two readers that disagree about one request are a way past a check.
//
// A refusal is a problem (problems.go), never a bare error. The package knows the
// form of a request and nothing about orders. id.go generates the ids of requests.
package request
