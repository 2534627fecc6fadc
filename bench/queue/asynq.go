package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// asynqContender is asynq with its defaults, or tuned: it polls for tasks every few
// milliseconds instead of every second, for due ones instead of every five seconds, and does
// not log. In both settings it has one queue, no StrictPriority and no HealthCheckFunc.
func asynqContender(name string, tuned bool) contender {
	cfg := asynq.Config{}
	if tuned {
		cfg.TaskCheckInterval = tunedInterval
		cfg.DelayedTaskCheckInterval = tunedInterval
		cfg.LogLevel = asynq.ErrorLevel
	}
	cfg.Concurrency = concurrency
	return contender{
		name: name, best: tuned, perCall: 1,
		open: func(addr, queueName string) (queueClient, error) { return openAsynq(addr, queueName, cfg), nil },
	}
}

// tunedInterval is the polling interval of the tuned asynq. Its documentation warns that a low
// value loads Redis; the tables show that cost.
const tunedInterval = 5 * time.Millisecond

func openAsynq(addr, name string, cfg asynq.Config) queueClient {
	rdb := goRedis(addr)
	cfg.Queues = map[string]int{name: 1}
	cfg.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return retryDelay }
	return &asynqClient{
		rdb: rdb, name: name, cfg: cfg,
		client: asynq.NewClientFromRedisClient(rdb), inspector: asynq.NewInspectorFromRedisClient(rdb),
	}
}

type asynqClient struct {
	rdb       *redis.Client
	name      string
	cfg       asynq.Config
	client    *asynq.Client
	inspector *asynq.Inspector
}

// enqueue adds tasks one at a time; asynq has no call for several.
func (a *asynqClient) enqueue(ctx context.Context, jobs []job) error {
	for _, j := range jobs {
		// The id is given because ours has one too; asynq's generated ids are longer.
		opts := []asynq.Option{asynq.Queue(a.name), asynq.TaskID(j.id)}
		if !j.due.IsZero() {
			opts = append(opts, asynq.ProcessAt(j.due))
		}
		if _, err := a.client.EnqueueContext(ctx, asynq.NewTask("bench", j.payload), opts...); err != nil {
			return fmt.Errorf("enqueue %s: %w", j.id, err)
		}
	}
	return nil
}

func (a *asynqClient) start(_ context.Context, h handler) (func() error, error) {
	var wrong complaints
	cfg := a.cfg
	cfg.Logger = asynqLog{&wrong}
	s := asynq.NewServerFromRedisClient(a.rdb, cfg)
	err := s.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		index, err := indexOf(t.Payload())
		if err != nil {
			wrong.add(err)
			return nil
		}
		if errs := h(ctx, []int{index}); errs != nil {
			return errs[0]
		}
		return nil
	}))
	if err != nil {
		return nil, err
	}
	return func() error {
		s.Shutdown()
		return wrong.err()
	}, nil
}

func (a *asynqClient) left(context.Context) (int, error) {
	info, err := a.inspector.GetQueueInfo(a.name)
	if errors.Is(err, asynq.ErrQueueNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return info.Size, nil
}

func (a *asynqClient) close() error { return a.rdb.Close() }

// asynqLog collects asynq's warnings and errors, and drops other messages, which would appear
// between the tables.
type asynqLog struct{ wrong *complaints }

func (l asynqLog) Debug(...any)      {}
func (l asynqLog) Info(...any)       {}
func (l asynqLog) Warn(...any)       {}
func (l asynqLog) Error(args ...any) { l.wrong.add(fmt.Errorf("asynq: %s", fmt.Sprint(args...))) }
func (l asynqLog) Fatal(args ...any) { l.wrong.add(fmt.Errorf("asynq: %s", fmt.Sprint(args...))) }

// openAsynqForRecovery is the tuned asynq with a handler call for each of the held tasks. Its
// lease of 30 s and its check for expired leases once a minute cannot be configured.
func openAsynqForRecovery(addr, name string) queueClient {
	return openAsynq(addr, name, asynq.Config{
		Concurrency:              heldTasks,
		TaskCheckInterval:        tunedInterval,
		DelayedTaskCheckInterval: tunedInterval,
		LogLevel:                 asynq.ErrorLevel,
	})
}
