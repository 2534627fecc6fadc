package admin

import (
	"errors"
	"time"

	"github.com/spf13/pflag"
)

// noWindow means that orders of an item require no payment.
const noWindow = "none"

// paymentWindow is the value of --payment-window: how long an order may wait for its
// payment, in whole seconds. Zero means that no payment is required.
type paymentWindow time.Duration

// flagWindow defines --payment-window.
func flagWindow(f *pflag.FlagSet, to *paymentWindow) {
	f.Var(to, "payment-window", "`time` to pay in whole seconds, such as 15m, after which an unpaid order expires; "+noWindow+": no payment is required")
}

// Set reads a duration or "none".
func (w *paymentWindow) Set(text string) error {
	if text == noWindow {
		*w = 0
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	if d < 0 || d%time.Second != 0 {
		return errors.New("not in whole seconds")
	}
	*w = paymentWindow(d)
	return nil
}

// String is empty for zero, so that the help shows no default.
func (w *paymentWindow) String() string {
	if *w == 0 {
		return ""
	}
	return time.Duration(*w).String()
}

// Type names the kind of value, for the explanation of a malformed one.
func (w *paymentWindow) Type() string { return "window" }

func (w paymentWindow) seconds() int64 { return int64(time.Duration(w) / time.Second) }
