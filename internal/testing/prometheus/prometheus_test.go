//go:build unix

package prometheus_test

import (
	"reflect"
	"testing"

	"flashsale/internal/testing/prometheus"
)

func TestSelectors(t *testing.T) {
	t.Parallel()
	got := prometheus.Selectors(`sum by (le) (rate(flashsale_x_bucket{route="/v1/items/:item/orders",code!~"a|b"}[5m])) > 1 and on () up == 0`)
	want := []prometheus.Selector{
		{Metric: "flashsale_x_bucket", Matchers: []prometheus.Matcher{{Label: "route", Op: "=", Value: "/v1/items/:item/orders"}, {Label: "code", Op: "!~", Value: "a|b"}}},
		{Metric: "up"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestLabels(t *testing.T) {
	t.Parallel()
	got := prometheus.Labels("max by (queue, state) (x) and on () y", "{{queue}} {{ state }}", "The part {{ $labels.part }} ({{ $value }}){{ else }}.{{ end }}")
	if want := []string{"queue", "state", "queue", "state", "part"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPage_Add(t *testing.T) {
	t.Parallel()
	p := make(prometheus.Page)
	p.Add("# HELP a_b text {x=\"y\"} 1\n# TYPE a_b gauge\na_b{part=\"redis\",text=\"a\\\"}\"} 1\na_b 2\nc_bucket{le=\"+Inf\"} 3e+06\n")
	want := prometheus.Page{"a_b": {{"part": "redis", "text": `a\"}`}, {}}, "c_bucket": {{"le": "+Inf"}}}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("got %v, want %v", p, want)
	}
}
