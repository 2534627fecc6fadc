package handler

import (
	"errors"
	"slices"
	"strings"
	"time"

	"flashsale/catalog"
	"flashsale/handler/metrics"
	"flashsale/handler/problem"
	"flashsale/handler/request"
	"flashsale/order/figures"
)

// figuresFeed shows the figures of the deployment.
type figuresFeed interface {
	// Watch begins to watch items, or the busiest if there are none. wake is called when look
	// has something to return. look returns the newest event, else nil; its errors end the
	// stream. stop has to be called. Errors: those of figures.Figures.Watch.
	Watch(items []string, wake func()) (look func() ([]byte, error), stop func(), err error)
}

// purchaseObserver counts the answers to purchases for the figures.
type purchaseObserver interface {
	// Answered counts an answer, 201 or 202, and the time that it took.
	Answered(status int, took time.Duration)
	// Refused counts a refusal by its code.
	Refused(code string)
}

// figuresRoutes show the figures of the deployment as server-sent events.
type figuresRoutes struct {
	streams
	items itemCatalog
}

// watch answers GET /v1/admin/events: one event per second, until the client disconnects.
func (rs *figuresRoutes) watch(q *call) error {
	items, err := rs.selection(q)
	if err != nil {
		return err
	}
	source := &figuresEvents{metrics: rs.metrics}
	s := &eventStream{rs: &rs.streams, source: source}
	if source.look, source.stop, err = rs.Figures.Watch(items, s.wake); err != nil {
		q.c.Writer.Header()["Connection"] = headerClose
		if errors.Is(err, figures.ErrTooManyItems) {
			return problemFiguresItems
		}
		return err
	}
	detached := false
	defer func() {
		if !detached {
			source.stop()
		}
	}()
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	first := func(b []byte) []byte {
		b, _ = source.next(b) // a source that has ended says so again
		return b
	}
	detached = s.begin(q, true, first)
	return nil
}

// problemFiguresItems refuses a selection while the other streams follow too many items.
var problemFiguresItems = problem.New(503, "overloaded", "Overloaded",
	"The streams of figures of this process follow too many different items; select fewer, or retry later.").Among(streamRetry)

// errSelection refuses a list of items that is empty or too long.
var errSelection = request.ErrParameter.With("item", "item lists 1 to 20 ids of items, separated by commas.")

// selection reads the parameter item: the ids of existing items, without repetitions.
func (rs *figuresRoutes) selection(q *call) (items []string, err error) {
	if !q.query.Has("item") {
		return nil, nil
	}
	list := q.query.Get("item")
	if list == "" {
		return nil, errSelection
	}
	for id := range strings.SplitSeq(list, ",") {
		switch {
		case len(items) == figures.MaxItems:
			return nil, errSelection
		case !catalog.ValidID(id):
			return nil, problemItemID
		case slices.Contains(items, id):
			continue
		}
		if _, err := rs.items.Item(q.ctx(), id); err != nil {
			return nil, err
		}
		items = append(items, id)
	}
	return items, nil
}

// figuresEvents are the figures, one event per second.
type figuresEvents struct {
	metrics *metrics.Metrics
	look    func() ([]byte, error)
	stop    func()
}

func (s *figuresEvents) next(b []byte) (_ []byte, more bool) {
	event, err := s.look()
	return append(b, event...), err == nil
}

func (s *figuresEvents) opened() { s.metrics.FiguresOpened() }

func (s *figuresEvents) closed() {
	s.metrics.FiguresClosed()
	s.stop()
}
