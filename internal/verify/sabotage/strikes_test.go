//go:build chaos && unix

package sabotage

import (
	"slices"
	"strings"
	"time"

	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

// killWorkerBeforeCommit blocks the worker's writes and kills it while buyers wait. Another
// worker completes its orders.
func killWorkerBeforeCommit(s *stage) {
	s.open(1, "")
	worker := s.worker()
	s.crowd(s.fresh(30))
	unlock := s.lockDatabase()
	defer unlock()
	s.crowd(s.fresh(64), func() {
		s.eventually("the worker has leased what the buyers wait for", func() bool {
			return s.zcard("q:orders:leased") > 0 || s.hget("q:orders:counts", "processed") > 30
		})
	})
	worker.Kill()
	s.struck()
	unlock()
	s.worker()
	s.crowd(s.fresh(2 * stock))
}

// raiseStock repeatedly increases the stock in Redis above the real one.
func raiseStock(s *stage) {
	s.open(1, "")
	s.worker()
	s.crowd(s.fresh(2*stock), func() {
		for range 5 {
			s.answered(20)
			// If the sale was dropped in the meantime, this field must not recreate it.
			if s.rdb.HExists(s.ctx, s.key("sale:"+item), "left").Val() {
				s.must(s.rdb.HIncrBy(s.ctx, s.key("sale:"+item), "left", 40).Err())
				s.struck()
			}
		}
	})
	s.crowd(s.fresh(stock))
}

// forgetKeys removes the keys of committed purchases from Redis, and repeats the purchases.
func forgetKeys(s *stage) {
	s.final.AcceptedMayBeLost = true // Redis loses its data
	s.open(1, "")
	s.worker()
	first := s.fresh(stock / 4)
	s.crowd(first)
	s.drained()
	// Keep the number of keys, so that a count does not reveal the change.
	known := s.rdb.HGetAll(s.ctx, s.key("buyers:"+item)).Val()
	if len(known) != len(first) {
		s.t.Fatalf("Redis knows %d keys of %d", len(known), len(first))
	}
	p := s.rdb.TxPipeline()
	p.Del(s.ctx, s.key("buyers:"+item))
	for user, value := range known { // "<units> <order> <key>"
		at := strings.LastIndexByte(value, ' ')
		p.HSet(s.ctx, s.key("buyers:"+item), user, value[:at]+strings.ToUpper(value[at:]))
	}
	_, err := p.Exec(s.ctx)
	s.must(err)
	s.struck()
	s.crowd(slices.Clone(first))
	s.crowd(s.fresh(2 * stock))
}

// dropReplies loses Redis's replies to batches of purchases that Redis has executed.
func dropReplies(s *stage) {
	proxy := redistest.NewProxy(s.t, s.server.Addr())
	// With a delay, several purchases wait for the next batch.
	proxy.SetLatency(5*time.Millisecond, 5*time.Millisecond)
	s.open(1, proxy.Addr())
	s.worker()
	for range 3 { // an altered build takes two units per purchase and is not sold out before
		purchases := s.fresh(stock / 5)
		lost := proxy.CutReplyTo(purchases[len(purchases)/2].key)
		s.crowd(purchases)
		select {
		case <-lost:
			s.struck()
		default:
			s.t.Error("no batch has lost its reply")
		}
	}
	s.crowd(s.fresh(2 * stock))
}

// deleteLock deletes all keys of the item's lock several times during a sale by two processes.
func deleteLock(s *stage) {
	s.open(2, "")
	s.worker()
	stop := s.watchFences()
	defer stop()
	for range 4 {
		s.crowd(s.fresh(stock / 5))
		lock := s.key("sale:"+item) + ":lock"
		s.must(s.rdb.Del(s.ctx, lock, lock+":waiters", lock+":seen", lock+":fence").Err())
		// Processes that share an item sell without acquiring its lock, unless it is held for longer.
		s.must(s.rdb.Set(s.ctx, lock, "another process", 100*time.Millisecond).Err())
		s.struck()
	}
	s.crowd(s.fresh(2 * stock))
	s.lasts(100 * time.Millisecond) // more samples after the last sale
}

// restoreBackup restores a backup from the middle of the sale, and decides that Redis is right.
// The reconciliation runs meanwhile.
func restoreBackup(s *stage) {
	args := []string{"--reconcile-every", "1s"}
	s.open(1, "", args...)
	worker := s.worker()
	s.crowd(s.fresh(stock / 4))
	restore := s.backUp()
	s.crowd(s.fresh(stock / 4))
	worker.Kill()
	s.apis[0].Kill()
	s.must(s.db.Close())
	restore()
	s.openDB()
	s.struck()
	left := s.hget("sale:"+item, "left")
	s.worker()
	s.apis = []*process.P{s.startAPI("", args...)}
	s.eventually("the sale is stopped, or repaired from the old database", func() bool {
		changing, _ := s.rdb.HGet(s.ctx, s.key("sale:"+item), "changing").Result() //nolint:errcheck // the field is missing at first
		return changing == "stopped" || s.hget("sale:"+item, "left") > left
	})
	s.command("recover", "--from", "redis")
	s.crowd(s.fresh(2 * stock))
}
