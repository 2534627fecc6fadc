// Package docs holds the pages of this folder that the service serves itself.
package docs

import _ "embed"

// Problems is problems.md: for each code of a problem its meaning, and what a
// client should do. Each code has a heading of the second level.
//
//go:embed problems.md
var Problems string
