package server_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"flashsale/handler/handlertest"
)

// maxLine is the longest request line that is accepted, in bytes.
const maxLine = 16 << 10

// A request line above 16 KiB is refused as soon as it is too long, even without an end, and
// even on a connection that was used before.
func TestServer_LongRequestLineIsRefusedEarly(t *testing.T) {
	t.Parallel()
	long := "GET /page/" + strings.Repeat("a", maxLine)
	const end = " HTTP/1.1\r\nHost: shop\r\n\r\n"
	for name, request := range map[string]string{
		"unfinished":             long,
		"finished":               long + end,
		"in the query":           "GET /page?cursor=" + strings.Repeat("a", maxLine) + end,
		"in the method":          strings.Repeat("G", maxLine+1) + " /" + end,
		"followed by another":    long + end + smuggled,
		"200 KB, unfinished":     "GET /" + strings.Repeat("a", 200<<10),
		"16 KiB and 1, finished": long[:maxLine+1-len(" HTTP/1.1\r")] + end,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, used := range []bool{false, true} {
				// Only the length of the line can end the wait: the server's own limit is
				// longer than the test's.
				w := handlertest.Dial(t, handlertest.Serve(t, newShop(), handlertest.ReadWithin(time.Minute)))
				if used {
					w.Send(t, rawPurchase(withLength(wireBody), wireBody))
					if resp := w.Answer(t); resp.StatusCode != 201 {
						t.Fatalf("status = %d", resp.StatusCode)
					}
				}
				w.Send(t, request)
				resp := w.Answer(t)
				handlertest.WantProblem(t, resp, 431, "header_too_large")
				if !resp.Close {
					t.Error("the answer does not announce the end of the connection")
				}
				// It does not end with a reset, although not everything was read.
				if rest, err := io.ReadAll(w.In); err != nil || len(rest) > 0 {
					t.Errorf("the connection ends with %v, after %q", err, rest)
				}
			}
		})
	}
	t.Run("16 KiB", func(t *testing.T) {
		t.Parallel()
		w, _ := open(t)
		for range 2 {
			w.Send(t, long[:maxLine-len(" HTTP/1.1\r")]+end)
			handlertest.WantProblem(t, w.Answer(t), 404, "no_route_in_tests")
			// A body of any length does not count as a request line.
			long := wireBody + strings.Repeat(" ", 40<<10)
			w.Send(t, rawPurchase(withLength(long), long))
			handlertest.WantProblem(t, w.Answer(t), 413, "body_too_large")
		}
	})
}
