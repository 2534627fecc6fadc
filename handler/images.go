package handler

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode"

	"flashsale/handler/placeholder"
	"flashsale/handler/request"
)

// maxImageURL is the maximum length of an item's image_url, in characters.
const maxImageURL = 512

// checkImageURL checks an item's image_url; "" is no image. The shop's pages show images of their
// own address only, so it is a path.
func checkImageURL(path string) error {
	const field = "image_url"
	if path == "" {
		return nil
	}
	// Browsers read // and /\ as the beginning of another host's address.
	if path[0] != '/' || strings.HasPrefix(path, "//") {
		return request.ErrFieldRange.With(field, "image_url must be a path on the shop's own address, such as /images/drop-1.jpg: "+
			"start it with exactly one /.")
	}
	if err := request.CheckText(field, path, 0, maxImageURL, false); err != nil {
		return err
	}
	for _, r := range path {
		switch {
		case r == '\\':
			return request.ErrFieldRange.With(field, "image_url contains a backslash; use / instead.")
		case r == '#':
			return request.ErrFieldRange.With(field, "image_url must have no fragment; remove # and everything after it.")
		case unicode.IsSpace(r):
			return request.ErrFieldRange.With(field, fmt.Sprintf("image_url contains U+%04X, a space; percent-encode it, such as %%20.", r))
		}
	}
	if _, err := url.PathUnescape(path); err != nil {
		return request.ErrFieldRange.With(field, "image_url has an invalid percent-encoding: % must be followed by two hexadecimal digits; "+
			"write a percent sign as %25.")
	}
	if _, err := url.Parse(path); err != nil {
		return request.ErrFieldRange.With(field, "image_url is not a valid URL path, such as /images/drop-1.jpg.")
	}
	return nil
}

// The headers of a placeholder. The policy applies when it is opened as a page of its own.
var (
	headerSVG         = []string{"image/svg+xml"}
	headerPlaceholder = []string{"public, max-age=86400, immutable"}
	headerNoSniff     = []string{"nosniff"}
	headerNothing     = []string{"default-src 'none'"}
)

// placeholderImage answers GET /items/{item}/image.svg. The picture depends only on the id, so the
// route needs neither the catalogue nor the database.
func placeholderImage(q *call) error {
	q.out = append(q.out[:0], placeholder.SVG(q.c.Param("item"))...)
	h := q.c.Writer.Header()
	h["Content-Type"], h["Cache-Control"], h["X-Content-Type-Options"], h["Content-Security-Policy"] = headerSVG, headerPlaceholder, headerNoSniff, headerNothing
	h["Content-Length"] = []string{strconv.Itoa(len(q.out))}
	q.c.Writer.WriteHeader(http.StatusOK)
	if _, err := q.c.Writer.Write(q.out); err != nil {
		return errClientGone
	}
	return nil
}
