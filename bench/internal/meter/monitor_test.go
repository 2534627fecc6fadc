package meter

import (
	"bufio"
	"maps"
	"strings"
	"testing"
)

func TestCount(t *testing.T) {
	t.Parallel()
	stream := strings.Join([]string{
		`+1700000000.000001 [0 127.0.0.1:1] "evalsha" "before"`,
		`+1700000000.000002 [0 127.0.0.1:9] "echo" "bench:begin"`,
		`+1700000000.000003 [0 127.0.0.1:1] "EVALSHA" "a] \"b" "1"`,
		`+1700000000.000004 [0 lua] "SET" "k" "v"`,
		`+1700000000.000005 [0 127.0.0.1:2] "ping"`,
		`+1700000000.000006 [0 127.0.0.1:1] "evalsha" "a" "bench:end"`,
		`+1700000000.000007 [0 127.0.0.1:9] "echo" "bench:end"`,
		`+1700000000.000008 [0 127.0.0.1:1] "evalsha" "after"`,
	}, "\r\n")
	got := count(bufio.NewReader(strings.NewReader(stream)))
	if got.err != nil {
		t.Fatal(got.err)
	}
	for _, tc := range []struct {
		left map[string]bool
		want map[string]int
	}{
		{nil, map[string]int{"evalsha": 2, "ping": 1}},
		{map[string]bool{"127.0.0.1:1": true}, map[string]int{"ping": 1}},
	} {
		if sum := got.from.Without(tc.left); !maps.Equal(sum, tc.want) {
			t.Errorf("without %v: %v, want %v", tc.left, sum, tc.want)
		}
	}
}

func TestCount_Broken(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{"", "-ERR no\r\n", `+1.0 [0 127.0.0.1:1] "ping"` + "\r\n"} {
		if got := count(bufio.NewReader(strings.NewReader(stream))); got.err == nil {
			t.Errorf("%q: no error", stream)
		}
	}
}
