package client_test

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"flashsale/client"
)

// A shop's server: it receives webhooks, verifies their signatures, and reports the payment of each
// confirmed order.
func Example_shop() {
	s, err := newShopServer("https://sale.example", os.Getenv("TOKEN"), os.Getenv("WEBHOOK_SECRET"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	go s.work(context.Background())
	http.Handle("POST /hooks", s)
	if err := http.ListenAndServe("127.0.0.1:8090", nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// shopServer receives the events of orders.
type shopServer struct {
	sale     *client.Client
	webhooks *client.WebhookVerifier
	// inbox holds the events to work on. A real shop stores them in its database, under their ids.
	inbox chan client.WebhookMessage
	// done receives the order of each event and what was done about it.
	done chan string
}

func newShopServer(server, token, secret string) (*shopServer, error) {
	sale, err := client.NewBearer(server, token)
	if err != nil {
		return nil, err
	}
	webhooks, err := client.NewWebhookVerifier(secret)
	if err != nil {
		return nil, err
	}
	return &shopServer{sale: sale, webhooks: webhooks, inbox: make(chan client.WebhookMessage, 100), done: make(chan string, 100)}, nil
}

// ServeHTTP answers as soon as the event is in the inbox. With any other answer than 2xx the service
// sends the event again later.
func (s *shopServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	message, err := s.webhooks.Read(r)
	if err != nil {
		http.Error(w, "not a message of the sale", http.StatusBadRequest)
		return
	}
	select {
	case s.inbox <- message:
		w.WriteHeader(http.StatusNoContent)
	default:
		http.Error(w, "busy", http.StatusServiceUnavailable)
	}
}

// work works on the events until ctx ends.
func (s *shopServer) work(ctx context.Context) {
	seen := make(map[string]bool) // events may be delivered more than once
	for {
		select {
		case message := <-s.inbox:
			if seen[message.ID] {
				continue
			}
			seen[message.ID] = true
			if err := s.handle(ctx, &message); err != nil {
				s.done <- err.Error()
			}
		case <-ctx.Done():
			return
		}
	}
}

// handle collects the money for an order and reports it.
func (s *shopServer) handle(ctx context.Context, message *client.WebhookMessage) error {
	if message.Type != "order.confirmed" {
		s.done <- message.Type
		return nil
	}
	order, err := message.Order()
	if err != nil {
		return err
	}
	// Here the shop collects the money. The reference makes the report safe to repeat.
	order, err = client.Decode[client.Order](s.sale.RecordPayment(ctx, order.ID, client.PaymentReport{
		Reference: "psp-" + order.ID, AmountMinor: order.Quantity * order.UnitPriceMinor, Currency: order.Currency,
	}))
	switch {
	case client.HasCode(err, client.ProblemCodeOrderExpired):
		s.done <- "too late: refund the buyer"
		return nil
	case err != nil:
		return err
	}
	s.done <- string(order.Status)
	return nil
}
