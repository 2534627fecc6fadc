package lock

import (
	"testing"

	"flashsale/internal/testing/await"
)

// Options and functions of the manager on a quorum; TestQuorum runs these.

// Given locks on all nodes, on some, and on too few, when they are inspected, then Info has the holder
// with its metadata and the number of its nodes.
func quorumInspect(t *testing.T, nodes quorumNodes) {
	ctx, name := await.Context(t), resource(t)
	cfg := quorumSlow
	cfg.Metadata = "host:7"
	m := nodes.manager(t, cfg)
	l := mustAcquire(t, m, name)
	nodes.awaitValue(t, name, l.GuardValue())
	for lost := range 3 {
		nodes[:lost].forget(t, name)
		info, err := m.Inspect(ctx, name)
		must(t, err)
		if !info.Held || info.Holder.Token != l.Token() || info.Holder.Metadata != "host:7" || info.Fence != l.Fence() {
			t.Errorf("%d nodes lost: %+v", lost, info)
		}
		if info.Nodes != quorumSize-lost || info.Remaining <= 0 || info.Remaining > cfg.TTL || info.Resource != name {
			t.Errorf("%d nodes lost: %+v", lost, info)
		}
	}
	nodes[:3].forget(t, name)
	info, err := m.Inspect(ctx, name)
	if err != nil || info.Held || info.Nodes != 0 {
		t.Errorf("a minority holds it: %+v, %v", info, err)
	}
	wantHeld(t, l, false)
	wantErr(t, l.Release(ctx), ErrNotHeld)
	nodes.awaitFree(t, name)
	info, err = m.Inspect(ctx, name)
	if err != nil || info.Held || info.Fence < l.Fence() {
		t.Errorf("free: %+v, %v, want the last fence %d", info, err, l.Fence())
	}
}
