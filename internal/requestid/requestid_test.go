package requestid_test

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"testing"

	"flashsale/internal/requestid"
)

func numbered(i int) requestid.Order {
	return requestid.Order{OrderID: "o" + strconv.Itoa(i), RequestID: "r" + strconv.Itoa(i)}
}

// The orders are found through every wrapping, and the text is that of the cause.
func TestOf(t *testing.T) {
	t.Parallel()
	one := requestid.About(io.EOF, 1, numbered)
	many := requestid.About(errors.New("busy"), 300, numbered)
	for name, c := range map[string]struct {
		err    error
		orders int
		total  int
	}{
		"nil":      {nil, 0, 0},
		"none":     {io.EOF, 0, 0},
		"no order": {requestid.About(io.EOF, 0, numbered), 0, 0},
		"one":      {one, 1, 1},
		"wrapped":  {fmt.Errorf("commit: %w", one), 1, 1},
		"joined":   {fmt.Errorf("sweep: %w", errors.Join(io.EOF, one, fmt.Errorf("b: %w", one))), 2, 2},
		"two":      {fmt.Errorf("%w: %w", io.EOF, one), 1, 1},
		"nested":   {requestid.About(one, 1, numbered), 2, 2},
		"many":     {many, 8, 300},
	} {
		orders, total := requestid.Of(c.err)
		if len(orders) != c.orders || total != c.total {
			t.Errorf("%s: %v of %d, want %d of %d", name, orders, total, c.orders, c.total)
		}
	}
	if orders, _ := requestid.Of(many); !reflect.DeepEqual(orders[7], numbered(7)) {
		t.Errorf("the last of many is %v", orders[7])
	}
	if one.Error() != "EOF" || !errors.Is(one, io.EOF) || requestid.About(nil, 1, numbered) != nil {
		t.Errorf("%v hides its cause", one)
	}
}
