package service

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"flashsale/order/worker"
)

// The message about a failed batch says whether the worker tries it again or returns it to the queue.
func TestFailureMessage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("commit batch failed, retrying: %w", errNotRead), `"order failed, retrying"`},
		{fmt.Errorf("commit batch failed: %w: %w", worker.ErrReturned, errNotRead), `"order failed, returned to the queue"`},
	} {
		var out bytes.Buffer
		e := &env{log: zerolog.New(&out)}
		e.reporterOf("order", failureMessage)(tc.err)
		if got := out.String(); !strings.Contains(got, `"message":`+tc.want) || !strings.Contains(got, `"component":"order"`) {
			t.Errorf("%v: %s, want %s", tc.err, got, tc.want)
		}
	}
}
