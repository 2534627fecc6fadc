package handler

import (
	"sync"

	"flashsale/order/figures"
)

// fakeFigures passes the test's events to every watcher.
type fakeFigures struct {
	err error // of Watch

	mu       sync.Mutex
	selected [][]string
	watchers map[*fakeWatcher]struct{}
	closed   bool
}

type fakeWatcher struct {
	wake func()
	news []byte
}

func newFakeFigures() *fakeFigures {
	return &fakeFigures{watchers: make(map[*fakeWatcher]struct{})}
}

func (f *fakeFigures) Watch(items []string, wake func()) (func() ([]byte, error), func(), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.selected = append(f.selected, items)
	if f.err != nil {
		return nil, nil, f.err
	}
	w := &fakeWatcher{wake: wake}
	f.watchers[w] = struct{}{}
	look := func() ([]byte, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if b := w.news; b != nil {
			w.news = nil
			return b, nil
		}
		if f.closed {
			return nil, figures.ErrClosed
		}
		return nil, nil
	}
	stop := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.watchers, w)
	}
	return look, stop, nil
}

// send replaces the news of all watchers.
func (f *fakeFigures) send(event string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watchers {
		w.news = []byte(event)
		w.wake()
	}
}

func (f *fakeFigures) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for w := range f.watchers {
		w.wake()
	}
}

func (f *fakeFigures) open() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.watchers)
}

// taken reports whether the streams have taken the last event.
func (f *fakeFigures) taken() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watchers {
		if w.news != nil {
			return false
		}
	}
	return true
}
