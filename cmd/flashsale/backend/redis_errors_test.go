package backend

import "testing"

type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

// A start waits for a cluster whose nodes do not agree yet and for Sentinels that replace a master,
// but not for a node of a cluster whose URL is that of a single server.
func TestPassing(t *testing.T) {
	t.Parallel()
	const single, cluster, sentinel = "redis://127.0.0.1:1", "cluster+redis://127.0.0.1:1", "sentinel+redis://127.0.0.1:1"
	for _, c := range []struct {
		setting, fix string
		reply        error
		want         bool
	}{
		{single, "", reply("LOADING Redis is loading the dataset in memory"), true},
		{single, "", reply("CLUSTERDOWN Hash slot not served"), true},
		{single, "", reply("MOVED 13827 127.0.0.1:26561"), false},
		{cluster, "", reply("MOVED 13827 127.0.0.1:26561"), true},
		{cluster, "", reply("ASK 13827 127.0.0.1:26561"), true},
		{cluster, "", reply("TRYAGAIN Multiple keys request during rehashing of slot"), true},
		{cluster, "", reply("WRONGPASS invalid username-password pair or user is disabled."), false},
		{single, refusedFix, nil, false},
		{sentinel, failoverFix, nil, true},
		{sentinel, deadMasterFix, nil, true},
		{sentinel, deadMasterFix + firewallFix, nil, true},
		{sentinel, refusedFix, nil, false},
	} {
		if got := passing(c.setting, c.fix, c.reply); got != c.want {
			t.Errorf("%s, %q, %v: %v, want %v", c.setting, c.fix, c.reply, got, c.want)
		}
	}
}
