package admin

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/spf13/cobra"
)

// answers is an HTTP client's transport that records the requests and answers from a list of
// status, space and body.
type answers struct {
	t    *testing.T
	list []string
	sent []string
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	body := []byte(nil)
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	a.sent = append(a.sent, r.URL.Path+" "+string(body))
	if len(a.list) == 0 {
		a.t.Fatalf("unexpected request %v", a.sent)
	}
	status, text, _ := strings.Cut(a.list[0], " ")
	a.list = a.list[1:]
	code := http.StatusOK
	if status == "503" {
		code = http.StatusServiceUnavailable
	}
	return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(text)), Header: http.Header{}}, nil
}

// TestRemote_decideMany follows the cursor, repeats a call that was refused for a lack of capacity, and reports what failed.
func TestRemote_decideMany(t *testing.T) {
	t.Parallel()
	const (
		refused = `503 {"code":"overloaded","detail":"later"}`
		first   = `200 {"matched":3,"done":2,"failed":1,"orders":5,"remaining":4,"before":"T","next_cursor":"c1"}`
		last    = `200 {"matched":4,"done":4,"failed":0,"orders":4,"before":"T","next_cursor":""}`
		path    = "/v1/admin/dead/retry "
	)
	for name, tc := range map[string]struct {
		flags     bulkFlags
		answers   []string
		sent      []string
		out, fail string
	}{
		"to the end": {
			bulkFlags{verb: "retry", all: true}, []string{refused, first, refused, last},
			[]string{path + `{"all":true}`, path + `{"all":true}`, path + `{"all":true,"cursor":"c1"}`, path + `{"all":true,"cursor":"c1"}`},
			"retry: 6 dead letters done with 9 orders, 1 failed\n", "failed and left as before: 1 dead letter;",
		},
		"a group": {
			bulkFlags{verb: "retry", group: "g", before: "B"}, []string{last}, []string{path + `{"before":"B","group":"g"}`},
			"retry: 4 dead letters done with 4 orders, 0 failed\n", "",
		},
		"it stops": {
			bulkFlags{verb: "retry", all: true}, []string{first, refused, refused, refused, refused, refused, refused}, nil,
			"", "retry after 2 dead letters: overloaded: later; to continue, repeat the command with --before T",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				transport := &answers{t: t, list: tc.answers}
				r := &remote{asked: asked{server: "http://api"}, client: http.Client{Transport: transport}}
				var out, progress strings.Builder
				c := &cobra.Command{}
				c.SetContext(t.Context())
				c.SetOut(&out)
				c.SetErr(&progress)
				err := r.decideMany(c, &tc.flags)
				if (err == nil) != (tc.fail == "") || err != nil && !strings.Contains(err.Error(), tc.fail) {
					t.Errorf("error %v, want %q", err, tc.fail)
				}
				if out.String() != tc.out {
					t.Errorf("printed %q, want %q", out.String(), tc.out)
				}
				if tc.sent != nil && !slices.Equal(transport.sent, tc.sent) {
					t.Errorf("sent %q, want %q", transport.sent, tc.sent)
				}
				if len(transport.list) != 0 {
					t.Errorf("%d answers were not used", len(transport.list))
				}
				if len(tc.answers) > 1 && !strings.Contains(progress.String(), "4 remaining") {
					t.Errorf("progress %q", progress.String())
				}
			})
		})
	}
}

// TestRemote_decideMany_One: a number of one is followed by a singular.
func TestRemote_decideMany_One(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]string{
		`"matched":1,"done":1,"orders":1`: "retry: 1 dead letter done with 1 order, 0 failed\n",
		`"matched":1,"done":1,"orders":2`: "retry: 1 dead letter done with 2 orders, 0 failed\n",
		`"matched":1,"done":0,"orders":0`: "retry: 0 dead letters done with 0 orders, 0 failed\n",
	} {
		r := &remote{asked: asked{server: "http://api"}, client: http.Client{Transport: &answers{t: t, list: []string{"200 {" + state + "}"}}}}
		c := &cobra.Command{}
		c.SetContext(t.Context())
		var out strings.Builder
		c.SetOut(&out)
		if err := r.decideMany(c, &bulkFlags{verb: "retry", all: true}); err != nil || out.String() != want {
			t.Errorf("%s: %q, error %v; want %q", state, out.String(), err, want)
		}
	}
}

// TestRemote_decideMany_None: a selection without dead letters is named.
func TestRemote_decideMany_None(t *testing.T) {
	t.Parallel()
	for want, flags := range map[string]bulkFlags{
		"nothing to retry: there are no dead letters\n":                               {verb: "retry", all: true},
		"nothing to discard: there are no dead letters\n":                             {verb: "discard", all: true},
		"nothing to retry: there are no dead letters that died before B\n":            {verb: "retry", all: true, before: "B"},
		"nothing to discard: there are no dead letters in group g\n":                  {verb: "discard", group: "g"},
		"nothing to retry: there are no dead letters in group g that died before B\n": {verb: "retry", group: "g", before: "B"},
	} {
		r := &remote{asked: asked{server: "http://api"}, client: http.Client{Transport: &answers{t: t, list: []string{`200 {"matched":0,"done":0,"failed":0,"orders":0}`}}}}
		c := &cobra.Command{}
		c.SetContext(t.Context())
		var out strings.Builder
		c.SetOut(&out)
		if err := r.decideMany(c, &flags); err != nil || out.String() != want {
			t.Errorf("%+v: %q, error %v; want %q", flags, out.String(), err, want)
		}
	}
}

// TestRemote_confirmDiscard_None: without dead letters there is no question.
func TestRemote_confirmDiscard_None(t *testing.T) {
	t.Parallel()
	r := &remote{asked: asked{server: "http://api"}, client: http.Client{Transport: &answers{t: t, list: []string{`200 {"total":0}`}}}}
	c := &cobra.Command{}
	c.SetContext(t.Context())
	c.SetIn(strings.NewReader(""))
	var out, question strings.Builder
	c.SetOut(&out)
	c.SetErr(&question)
	if some, err := r.confirmDiscard(c, ""); some || err != nil || question.Len() > 0 || out.String() != "nothing to discard: there are no dead letters\n" {
		t.Errorf("some %v, error %v, asked %q, printed %q", some, err, question.String(), out.String())
	}
}

// TestRemote_confirmDiscard: only the word yes confirms.
func TestRemote_confirmDiscard(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]bool{"yes\n": true, "yes": true, " yes \n": true, "y\n": false, "": false, "no\nyes\n": false} {
		r := &remote{asked: asked{server: "http://api"}, client: http.Client{Transport: &answers{t: t, list: []string{`200 {"total":12}`}}}}
		c := &cobra.Command{}
		c.SetContext(t.Context())
		c.SetIn(strings.NewReader(input))
		var question strings.Builder
		c.SetErr(&question)
		if some, err := r.confirmDiscard(c, "T"); some != want || (err == nil) != want {
			t.Errorf("%q: %v, %v", input, some, err)
		}
		if !strings.HasPrefix(question.String(), "Discard all dead letters that died before T permanently (12 in total)?") {
			t.Errorf("asked %q", question.String())
		}
	}
}
