package recovery

import (
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/order/store/storetest"
)

func TestStore_Epoch(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	first, err := s.Epoch(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what              string
		from, least, want int64
	}{
		{"seen as it is", first, 0, first + 1},
		{"seen before another raised it", first, 0, first + 1},
		{"seen as it will be", first + 2, 0, first + 1},
		{"below that of Redis", first + 1, first + 100, first + 101},
		{"above that of Redis", first + 101, first + 50, first + 102},
	} {
		raised, err := raiseEpochTo(await.Context(t), s, c.from, c.least)
		if err != nil || raised != c.want {
			t.Errorf("%s: raised to %d, %v, want %d", c.what, raised, err, c.want)
		}
		if epoch, err := s.Epoch(await.Context(t)); err != nil || epoch != raised {
			t.Errorf("%s: epoch %d, %v, want %d", c.what, epoch, err, raised)
		}
	}
	if err := s.Writer().Exec("UPDATE meta SET value = 'many' WHERE key = 'epoch'").Error; err != nil {
		t.Fatal(err)
	}
	if got, err := s.Epoch(await.Context(t)); err == nil {
		t.Errorf("a broken epoch is read as %d", got)
	}
}
