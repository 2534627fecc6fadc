package pause

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		if !For(ctx, 2*time.Second) || time.Since(began) != 2*time.Second {
			t.Errorf("the pause of 2 s was cut short, or took %v", time.Since(began))
		}
		if For(ctx, 2*time.Second) || time.Since(began) != 3*time.Second {
			t.Errorf("the pause went on after ctx had ended, until %v", time.Since(began))
		}
	})
}

func TestJittered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const d = time.Second
		took := make(map[time.Duration]bool)
		for range 100 {
			began := time.Now()
			if !Jittered(t.Context(), d) {
				t.Fatal("it did not wait")
			}
			waited := time.Since(began)
			if waited < d/2 || waited > d {
				t.Errorf("waited %v, want %v to %v", waited, d/2, d)
			}
			took[waited] = true
		}
		if len(took) == 1 {
			t.Error("it always waited equally long")
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if Jittered(ctx, time.Hour) {
		t.Error("it waited although its context had ended")
	}
}

func TestOrCause(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := OrCause(ctx, time.Nanosecond); err != nil {
		t.Error(err)
	}
	cause := errors.New("shutdown")
	cancel(cause)
	if err := OrCause(ctx, time.Hour); !errors.Is(err, cause) {
		t.Errorf("got %v, want the cause", err)
	}
}
