package catalog

import (
	"context"
	"sync"
	"time"
)

// gather reads items by id from the source, with at most limit concurrent queries. The ids
// requested meanwhile form the next query: waiting readers share one query, so that the
// source answers as fast at the end of a crowd as at its beginning.
type gather struct {
	limit int
	ask   func(ids []string) ([]Item, error)

	mu     sync.Mutex
	next   *question
	asking int
}

// maxQueryIDs bounds the ids of one query.
const maxQueryIDs = 500

type question struct {
	ids     []string
	askedAt time.Time
	done    chan struct{}
	found   map[string]Item
	err     error
}

func (g *gather) load(ctx context.Context, id string) (answer, error) {
	g.mu.Lock()
	q := g.next
	if q == nil {
		q = &question{done: make(chan struct{})}
		g.next = q
	}
	q.ids = append(q.ids, id)
	if g.asking < g.limit {
		g.asking++
		go g.run()
	}
	g.mu.Unlock()
	select {
	case <-q.done:
	case <-ctx.Done():
		return answer{}, context.Cause(ctx)
	}
	if q.err != nil {
		return answer{}, q.err
	}
	item, exists := q.found[id]
	return answer{item: item, exists: exists, loadedAt: q.askedAt}, nil
}

// run sends the gathered queries one after the other, until there is none.
func (g *gather) run() {
	for {
		g.mu.Lock()
		q := g.next
		g.next = nil
		if q == nil {
			g.asking--
		}
		g.mu.Unlock()
		if q == nil {
			return
		}
		q.askedAt = time.Now()
		q.found = make(map[string]Item, len(q.ids))
		for rest := q.ids; len(rest) > 0 && q.err == nil; {
			n := min(len(rest), maxQueryIDs)
			var items []Item
			items, q.err = g.ask(rest[:n])
			for _, item := range items {
				q.found[item.ID] = item
			}
			rest = rest[n:]
		}
		close(q.done)
	}
}
