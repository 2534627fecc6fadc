// Package web has the pages of the shop and of the dashboard: templates, styles, modules and texts.
// Package pages (handler/pages) renders and serves them.
package web

import "embed"

// Files are the folders assets (served to browsers), lang (texts), shop and admin (templates).
//
//go:embed assets lang shop admin
var Files embed.FS
