package backend

import "testing"

type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

// A start waits for a cluster whose nodes do not agree yet, but not for a node of a cluster whose
// URL is that of a single server.
func TestPassing(t *testing.T) {
	t.Parallel()
	const single, cluster = "redis://127.0.0.1:1", "cluster+redis://127.0.0.1:1"
	for _, c := range []struct {
		setting string
		reply   reply
		want    bool
	}{
		{single, "LOADING Redis is loading the dataset in memory", true},
		{single, "CLUSTERDOWN Hash slot not served", true},
		{single, "MOVED 13827 127.0.0.1:26561", false},
		{cluster, "MOVED 13827 127.0.0.1:26561", true},
		{cluster, "ASK 13827 127.0.0.1:26561", true},
		{cluster, "TRYAGAIN Multiple keys request during rehashing of slot", true},
		{cluster, "WRONGPASS invalid username-password pair or user is disabled.", false},
	} {
		if got := passing(c.setting, "", c.reply); got != c.want {
			t.Errorf("%s, %s: %v, want %v", c.setting, c.reply, got, c.want)
		}
	}
	if passing(single, refusedFix, nil) {
		t.Error("no reply is not one to wait for")
	}
}
