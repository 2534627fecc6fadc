package order

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// laneWait bounds how long a delivery is put off because its endpoint is busy.
	laneWait = time.Minute
	// laneTypical is what a delivery is taken to last before one has been seen.
	laneTypical = 200 * time.Millisecond
	// laneIdle is when an endpoint's lane is forgotten.
	laneIdle = 10 * time.Minute
)

// lanes keeps the endpoints apart: each has so many deliveries under way at most,
// so that one that is slow or dead does not take all workers. What finds its lane
// full is put off until there should be room, judged by how long deliveries there
// take, each a little later than the one before it.
type lanes struct {
	width int

	mu sync.Mutex
	of map[string]*lane
}

type lane struct {
	busy    int
	typical time.Duration // how long deliveries took lately
	next    time.Time     // when the next that is put off may come back
	used    time.Time
}

func newLanes(width int) *lanes { return &lanes{width: width, of: make(map[string]*lane)} }

// enter takes a place, or says how long to stay away.
func (l *lanes) enter(endpoint string, now time.Time) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.of[endpoint]
	if one == nil {
		l.forget(now)
		one = &lane{typical: laneTypical}
		l.of[endpoint] = one
	}
	one.used = now
	if one.busy < l.width {
		one.busy++
		return 0
	}
	if one.next.Before(now) {
		one.next = now
	}
	one.next = one.next.Add(one.typical / time.Duration(l.width))
	if most := now.Add(laneWait); one.next.After(most) {
		one.next = most
		return laneWait/2 + rand.N(laneWait/2) // those beyond must not come back all at once
	}
	return max(one.next.Sub(now), time.Millisecond)
}

// leave gives the place back.
func (l *lanes) leave(endpoint string, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.of[endpoint]
	one.busy--
	one.typical += (took - one.typical) / 4
}

// forget drops the lanes that nobody has used for long; endpoints come and go.
func (l *lanes) forget(now time.Time) {
	for endpoint, one := range l.of {
		if one.busy == 0 && now.Sub(one.used) > laneIdle {
			delete(l.of, endpoint)
		}
	}
}
