package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"flashsale/webhook"
)

// The shop's side: verify the sender before using the event, and answer 2xx once the event is
// stored. The same event may be sent again with the same id.
func Example() {
	secret := webhook.NewSecret() // shown once by POST /v1/admin/webhooks
	seen := make(map[string]bool) // in a real shop a table, written in the same transaction as the effects of the event

	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		verifier, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			http.Error(w, "our secret is broken", http.StatusInternalServerError)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "body", http.StatusBadRequest)
			return
		}
		// The signature covers the received bytes. Verification also fails for signatures older
		// than five minutes.
		if err := verifier.Verify(body, r.Header); err != nil {
			http.Error(w, "signature", http.StatusUnauthorized)
			return
		}
		if id := r.Header.Get("webhook-id"); !seen[id] {
			var event struct {
				Type string
				Data struct{ ID, Status string }
			}
			if err := json.Unmarshal(body, &event); err != nil {
				http.Error(w, "body", http.StatusBadRequest)
				return
			}
			fmt.Println(event.Type, event.Data.ID, event.Data.Status)
			seen[id] = true
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer shop.Close()

	// The service's side.
	networks, err := webhook.ParseNetworks([]string{"127.0.0.1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := webhook.NewClient(webhook.Config{Policy: webhook.Policy{Allow: networks}})
	defer client.Close()
	message := webhook.Message{
		ID: "msg_0197a0f23c4d7abc8def0123456789ab", URL: shop.URL, Secrets: []string{secret},
		Body: []byte(`{"type":"order.paid","timestamp":"2030-01-02T03:04:05.000Z","data":{"id":"0197…","status":"paid"}}`),
	}
	ctx := context.Background()
	fmt.Println(client.Send(ctx, &message).Status)
	fmt.Println(client.Send(ctx, &message).Status, "again")
	message.Secrets = []string{webhook.NewSecret()}
	fmt.Println(client.Send(ctx, &message).Status, "with an unknown secret")
	// Output:
	// order.paid 0197… paid
	// 204
	// 204 again
	// 401 with an unknown secret
}
