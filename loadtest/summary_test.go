package main

import "testing"

func TestAnswerCount_Expected(t *testing.T) {
	t.Parallel()
	for want, answers := range map[bool][]answerCount{
		true: {
			{Status: 0, Code: "timeout"}, {Status: 200}, {Status: 201}, {Status: 202}, {Status: 408}, {Status: 429, Code: "rate_limited"},
			{Status: 409, Code: "sold_out"}, {Status: 409, Code: "user_limit"}, {Status: 409, Code: "sale_not_open"},
			{Status: 409, Code: "sale_paused"}, {Status: 409, Code: "sale_closed"}, {Status: 502}, {Status: 503, Code: "overloaded"}, {Status: 504},
		},
		false: {
			{Status: 100}, {Status: 301}, {Status: 400, Code: "json_invalid"}, {Status: 401, Code: "token_expired"}, {Status: 403, Code: "forbidden"},
			{Status: 404, Code: "sold_out"}, {Status: 409}, {Status: 409, Code: "conflict"}, {Status: 422, Code: "quantity_range"},
			{Status: 500, Code: "internal"}, {Status: 501},
		},
	} {
		for _, a := range answers {
			if got := a.expected(); got != want {
				t.Errorf("%s: expected %v, want %v", a.Name(), got, want)
			}
		}
	}
}
