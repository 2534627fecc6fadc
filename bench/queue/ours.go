package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"flashsale/bench/internal/runner"
	"flashsale/queue"
)

// ourContender is flashsale/queue with its defaults, except for the size of a batch, which
// users choose to suit their handler. Producers that work in batches add as many tasks in a
// call. There is nothing else to tune: it does not poll.
func ourContender(name string, batch int) contender {
	return contender{
		name: name, ours: true, best: batch > 1, perCall: batch,
		open: func(addr, queueName string) (queueClient, error) {
			return openOurs(addr, queueName, queue.Config{}, queue.RunConfig{Batch: batch, Workers: concurrency})
		},
	}
}

func openOurs(addr, name string, cfg queue.Config, run queue.RunConfig) (queueClient, error) {
	rdb := goRedis(addr)
	cfg.Prefix = "{" + name + "}:"
	cfg.MaxLength = 50_000_000 // beyond every phase
	q, err := queue.New(rdb, cfg)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	return &ourClient{rdb: rdb, q: q, run: run}, nil
}

type ourClient struct {
	rdb *redis.Client
	q   *queue.Queue
	run queue.RunConfig
}

func (o *ourClient) enqueue(ctx context.Context, jobs []job) error {
	tasks := make([]queue.Task, len(jobs))
	for i, j := range jobs {
		tasks[i] = queue.Task{ID: j.id, Payload: j.payload, Due: j.due}
	}
	status, err := o.q.Enqueue(ctx, tasks...)
	if err != nil {
		return err
	}
	for i, s := range status {
		if s != queue.StatusOK {
			return fmt.Errorf("enqueue %s: %s", jobs[i].id, s)
		}
	}
	return nil
}

func (o *ourClient) start(ctx context.Context, h handler) (func() error, error) {
	var wrong complaints
	cfg := o.run
	cfg.OnError = wrong.add
	life, cancel := context.WithCancel(ctx)
	batched := adapt(h, &wrong)
	work := func(int) error { return o.q.Run(life, batched, cfg) }
	if cfg.Batch == 1 {
		work = func(int) error { return o.q.RunEach(life, single(batched), cfg) }
	}
	ended := runner.Run(1, work)
	return func() error {
		cancel()
		return errors.Join(runner.Finish(ended), wrong.err())
	}, nil
}

// adapt turns a handler of the benchmark into one of the library.
func adapt(h handler, wrong *complaints) queue.BatchHandler {
	return func(ctx context.Context, tasks []queue.Leased) []error {
		batch := make([]int, len(tasks))
		for i := range tasks {
			index, err := indexOf(tasks[i].Payload)
			if err != nil {
				wrong.add(err)
				return nil
			}
			batch[i] = index
		}
		errs := h(ctx, batch)
		for i, err := range errs {
			if err != nil {
				errs[i] = queue.RetryIn(retryDelay, err)
			}
		}
		return errs
	}
}

// single turns a handler of batches into one of single tasks.
func single(h queue.BatchHandler) queue.Handler {
	return func(ctx context.Context, task queue.Leased) error {
		if errs := h(ctx, []queue.Leased{task}); errs != nil {
			return errs[0]
		}
		return nil
	}
}

func (o *ourClient) left(ctx context.Context) (int, error) {
	s, err := o.q.Stats(ctx)
	return s.Ready + s.Delayed + s.Leased + s.Dead, err
}

func (o *ourClient) close() error { return o.rdb.Close() }

// complaints collects the first few errors that a library reports to its logger.
type complaints struct {
	mu   sync.Mutex
	errs []error
}

const maxComplaints = 5

func (c *complaints) add(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.errs) < maxComplaints {
		c.errs = append(c.errs, err)
	}
}

func (c *complaints) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.errs...)
}
