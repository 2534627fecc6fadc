package main

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// probeEvery is the time between two writes of a diskProbe.
const probeEvery = 50 * time.Millisecond

// diskProbe overwrites and syncs one block of a file again and again. It shows whether the disk
// itself was slow in a second in which the service was.
type diskProbe struct {
	file    *os.File
	stop    chan struct{}
	stopped chan struct{}

	mu      sync.Mutex
	longest time.Duration // since the last take
	err     error
}

func newDiskProbe(dir string) (*diskProbe, error) {
	file, err := os.Create(filepath.Join(dir, "probe"))
	if err != nil {
		return nil, err
	}
	p := &diskProbe{file: file, stop: make(chan struct{}), stopped: make(chan struct{})}
	go p.run()
	return p, nil
}

func (p *diskProbe) run() {
	defer close(p.stopped)
	block := make([]byte, 4096)
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		began := time.Now()
		_, err := p.file.WriteAt(block, 0)
		err = errors.Join(err, p.file.Sync())
		p.mu.Lock()
		p.longest, p.err = max(p.longest, time.Since(began)), err
		p.mu.Unlock()
		select {
		case <-p.stop:
			return
		case <-tick.C:
			if err != nil {
				return
			}
		}
	}
}

// take returns the longest write since the last call. A write that has not ended counts when it has.
func (p *diskProbe) take() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.longest
	p.longest = 0
	return d
}

func (p *diskProbe) close() error {
	close(p.stop)
	<-p.stopped
	return errors.Join(p.err, p.file.Close())
}
