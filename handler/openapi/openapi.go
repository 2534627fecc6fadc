// Package openapi has the contract of the HTTP API as an OpenAPI document. It is written by hand
// and served at GET /openapi.yaml; internal/testing/contract checks the traffic of the tests
// against it.
package openapi

import _ "embed"

// Document is the contract, an OpenAPI 3.1 document in YAML.
//
//go:embed openapi.yaml
var Document string
