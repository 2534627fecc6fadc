package handler

import (
	"context"

	"flashsale/handler/ops"
	"flashsale/handler/problem"
)

// problemNotReady is the answer of /readyz while a required part fails.
var problemNotReady = problem.New(503, "unavailable", "Not ready",
	"A required dependency is unavailable.").Among(1)

// health answers GET /healthz: the process runs and answers.
func health(q *call) error {
	q.out = append(q.out[:0], `{"status":"ok"}`...)
	return q.json(200)
}

// ready answers GET /readyz: 200, or 503 with the failing parts.
func ready(parts *ops.Readiness) endpoint {
	return func(q *call) error {
		state := parts.State(context.WithoutCancel(q.ctx()))
		if state.Ready() {
			q.out = append(state.AppendMembers(append(q.out[:0], '{')), `"status":"ok"}`...)
			return q.json(200)
		}
		return problemNotReady.One().WithMembers(state.AppendMembers(nil))
	}
}
