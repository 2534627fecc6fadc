package worker

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store/storetest"
	"flashsale/queue"
)

// lettersOf is a queue that has only dead letters, and counts the reads.
type lettersOf struct {
	letters []queue.TaskInfo // by time of death and id
	read    int
	made    int
}

func (l *lettersOf) List(_ context.Context, q queue.Query) (page queue.Page, _ error) {
	for _, id := range q.IDs {
		page.Tasks = append(page.Tasks, queue.TaskInfo{ID: id})
	}
	for _, letter := range l.letters {
		behind := letter.At.After(q.After.At) || letter.At.Equal(q.After.At) && letter.ID > q.After.ID
		switch i := slices.Index(q.IDs, letter.ID); {
		case i >= 0:
			page.Tasks[i] = letter
		case !behind || letter.At.After(q.DiedBy):
		case len(page.Tasks) < q.Limit:
			page.Tasks = append(page.Tasks, letter)
		default:
			page.More++
		}
	}
	l.read += len(page.Tasks)
	return page, nil
}

// die appends n dead letters of one item.
func (l *lettersOf) die(n int, at time.Time) {
	for range n {
		i := l.made
		l.made++
		t := ordertest.Bought(fmt.Sprintf("o%05d", i), "item", fmt.Sprint("u", i), "k", 1)
		l.letters = append(l.letters, queue.TaskInfo{
			ID: t.ID, Options: queue.Options{Type: order.PurchaseType}, Payload: order.AppendTask(nil, &t), At: at, State: queue.StateDead,
		})
	}
}

// TestSweeper_DeadLetters_Once: a sweep reads a bounded number of dead letters, the next one
// continues there, and each letter is read once. A letter that cannot be rejected does not
// delay others, and is retried while it is a dead letter.
func TestSweeper_DeadLetters_Once(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 10, 10))
	allow := ordertest.Refuse(t, s, "INSERT", "orders", "new.id IN ('o00003', 'o00004')")
	c := storetest.SetClock(s)
	died := s.Now()
	q := &lettersOf{}
	q.die(deadLetterPage+20, died)
	sweeper := NewSweeper(NewFulfiller(s, nil, nil, nil), SweeperConfig{Dead: []DeadLetters{q}})
	sweep := func(want int) error {
		t.Helper()
		var done Swept
		err := sweeper.deadLetters(await.Context(t), sweeper.dead[0], &done)
		if done.Rejected != want {
			t.Errorf("%d orders rejected, want %d; %v", done.Rejected, want, err)
		}
		return err
	}
	if err := sweep(0); err != nil || q.read != 0 {
		t.Errorf("before their time: %d letters read, %v", q.read, err)
	}
	c.Add(DeadLetterAfter.Milliseconds())
	if err := sweep(len(q.letters) - 2); err == nil {
		t.Error("no error although two orders were refused")
	}
	if q.read != len(q.letters) {
		t.Errorf("%d letters read, want %d", q.read, len(q.letters))
	}
	// The idle sweep reads only the failed letters.
	q.letters = append(q.letters[:4:4], q.letters[5:]...) // the second was retried by an operator
	for i := range q.letters {
		q.letters[i].At = died
	}
	allow()
	if err := sweep(1); err != nil {
		t.Error(err)
	}
	q.read = 0
	if err := sweep(0); err != nil || q.read != 0 {
		t.Errorf("an idle sweep read %d letters, %v", q.read, err)
	}
	// There are more than one sweep reads: the next ones continue there.
	later := died.Add(time.Minute)
	q.die(3, later)
	c.Add(time.Minute.Milliseconds())
	if err := sweep(3); err != nil || q.read != 3 {
		t.Errorf("%d letters read for 3 new ones, %v", q.read, err)
	}
}

// TestSweeper_DeadLetters_Bound: one sweep reads a bounded number of pages, and stops when the
// database does not answer.
func TestSweeper_DeadLetters_Bound(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	q := &lettersOf{}
	for i := range deadLetterPage*deadLetterPages + 10 {
		q.letters = append(q.letters, queue.TaskInfo{ID: fmt.Sprintf("x%06d", i), Options: queue.Options{Type: "other"}, At: s.Now()})
	}
	c.Add(DeadLetterAfter.Milliseconds())
	sweeper := NewSweeper(NewFulfiller(s, nil, nil, nil), SweeperConfig{Dead: []DeadLetters{q}})
	var done Swept
	for _, want := range []int{deadLetterPage * deadLetterPages, len(q.letters), len(q.letters)} {
		if err := sweeper.deadLetters(await.Context(t), sweeper.dead[0], &done); err != nil || q.read != want {
			t.Errorf("%d letters read, want %d, %v", q.read, want, err)
		}
	}
	q.letters = nil
	q.die(1, s.Now())
	c.Add(DeadLetterAfter.Milliseconds())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := sweeper.deadLetters(await.Context(t), sweeper.dead[0], &done); err == nil || done.Rejected != 0 {
		t.Errorf("%+v, %v with the database closed", done, err)
	}
	if err := sweeper.deadLetters(await.Context(t), sweeper.dead[0], &done); err == nil {
		t.Error("the letter counts as rejected")
	}
}
