package request

import (
	"errors"
	"strconv"

	"flashsale/handler/problem"
	"flashsale/handler/strictjson"
)

// The refusals that other packages return, too.
var (
	ErrHeaderTooLarge = problem.New(431, "header_too_large", "Header too large",
		"The request line or the headers exceed 16 KiB; send a shorter path and query, or fewer and shorter headers.").WithHeader("Connection", "close")
	ErrFieldMissing = problem.New(400, "field_missing", "Field missing",
		"The body lacks a required field.")
	ErrFieldType = problem.New(400, "field_type", "Wrong type of field",
		"A field of the body has the wrong type.")
	ErrFieldRange = problem.New(422, "field_range", "Field out of range",
		"A field of the body is out of its range.")
	ErrTimeout = problem.New(408, "request_timeout", "Request timed out",
		"The request did not arrive in time; send it at once.").WithHeader("Connection", "close")
	ErrKeyInvalid = problem.New(400, "idempotency_key_invalid", "Invalid idempotency key",
		"").With("Idempotency-Key", "An idempotency key has 1 to 255 visible ASCII characters.")
	ErrCursor = problem.New(400, "cursor_invalid", "Invalid cursor",
		"").With("cursor", "Use the next_cursor of the previous page, unchanged and with the same filters.")
	ErrParameter = problem.New(400, "parameter_invalid", "Invalid parameter",
		"A query parameter is malformed.")
)

// The refusals of headers and parameters.
var (
	errHeaderDuplicate = problem.New(400, "header_duplicate", "Header sent twice",
		"A header that takes one value was sent more than once; send it once.")
	errNotAcceptable = problem.New(406, "not_acceptable", "Not acceptable",
		"The response is application/json; allow it in the Accept header.").With("Accept",
		"The response is application/json; allow it in the Accept header.")
	errEventsNotAcceptable = problem.New(406, "not_acceptable", "Not acceptable",
		"").With("Accept", "The response is text/event-stream; allow it in the Accept header.")
	errDocsNotAcceptable = problem.New(406, "not_acceptable", "Not acceptable",
		"").With("Accept", "The response is text/html; allow it in the Accept header.")
	errYAMLNotAcceptable = problem.New(406, "not_acceptable", "Not acceptable",
		"").With("Accept", "The response is application/yaml; allow it in the Accept header.")
	errKeyMissing = problem.New(400, "idempotency_key_missing", "Idempotency key missing",
		"").With("Idempotency-Key", "Send an Idempotency-Key header: a new value for each purchase or restock, the same for a repeat.")
	errLimit = problem.New(400, "limit_range", "Limit out of range",
		"").With("limit", "limit must be a whole number from 1 to 100.")
	errUnknownParameter = problem.New(400, "unknown_parameter", "Unknown parameter",
		"The route does not take this query parameter.")
	errMatchMissing = problem.New(428, "version_required", "Version required",
		"").With("If-Match", "Send If-Match with the ETag of GET /v1/admin/items/{item}, so that no concurrent change is overwritten; or * to change any version.")
	errMatchInvalid = problem.New(400, "if_match_invalid", "Invalid If-Match",
		"").With("If-Match", `If-Match is *, or entity tags such as "4" with commas between them.`)
)

// maxParam bounds the text of a client that a refusal repeats as its param, in bytes.
const maxParam = 64

// tooLarge returns the refusal of a body of more than limit bytes.
func tooLarge(limit int) *problem.Problem {
	return errBodyTooLarge.With("", "The body exceeds the "+strconv.Itoa(limit)+" bytes that this route takes.")
}

// The refusals of bodies.
var (
	errBodyCut = problem.New(400, "body_incomplete", "Body incomplete",
		"The body ended before its announced length, or its chunks are malformed.").WithHeader("Connection", "close")
	errContentType = problem.New(415, "content_type", "Unsupported content type",
		"").With("Content-Type", "Send the body as Content-Type: application/json (UTF-8).")
	errFormType        = errContentType.With("Content-Type", "Send the form as Content-Type: application/x-www-form-urlencoded.")
	errContentEncoding = problem.New(415, "content_encoding", "Unsupported content encoding",
		"").With("Content-Encoding", "Send the body uncompressed, without a Content-Encoding.")
	errBodyTooLarge = problem.New(413, "body_too_large", "Body too large",
		"The body exceeds what this route takes.")
	errBodyMissing = problem.New(400, "body_missing", "Body missing",
		"The route needs a JSON object in the body.")
	errJSONInvalid = problem.New(400, "json_invalid", "Invalid JSON",
		"The body is not one JSON object in valid UTF-8.")
	errJSONTrailing = problem.New(400, "json_trailing", "Bytes after the JSON object",
		"The body continues after the JSON object; send only the object.")
	errJSONDuplicate = problem.New(400, "json_duplicate_key", "Member named twice",
		"The JSON object names a member twice; name each once.")
	errUnknownField = problem.New(400, "unknown_field", "Unknown field",
		"The body has a field that the route does not take.")
)

// JSONProblem returns the refusal of a body that was read to its end; nil if there was no error.
func JSONProblem(body *strictjson.Reader) error {
	switch err := body.Err(); {
	case err == nil:
		return nil
	case errors.Is(err, strictjson.ErrEmpty):
		return errBodyMissing
	case errors.Is(err, strictjson.ErrTrailing):
		return errJSONTrailing
	case errors.Is(err, strictjson.ErrDuplicate):
		return errJSONDuplicate.With(truncate(string(body.Duplicate()), maxParam), errJSONDuplicate.Detail)
	default:
		return errJSONInvalid
	}
}
