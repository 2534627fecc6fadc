package client

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const (
	oldSecret = "whsec_b2xkIG9sZCBvbGQgb2xkIG9sZCBvbGQgb2xkIG9sZCA="
	newSecret = "whsec_bmV3IG5ldyBuZXcgbmV3IG5ldyBuZXcgbmV3IG5ldyA="
	someEvent = `{"type":"order.confirmed","timestamp":"2030-01-02T03:04:05.060Z","data":` + someOrder + `}`
)

var someTime = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// signed returns the headers of a message as the service sends them.
func signed(t *testing.T, body string, at time.Time, secrets ...string) http.Header {
	t.Helper()
	h := http.Header{}
	h.Set("Webhook-Id", "msg_1")
	h.Set("Webhook-Timestamp", strconv.FormatInt(at.Unix(), 10))
	var all []string
	for _, secret := range secrets {
		signer, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		signature, err := signer.Sign("msg_1", at, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, signature)
	}
	h.Set("Webhook-Signature", strings.Join(all, " "))
	return h
}

func newVerifier(t *testing.T, secrets ...string) *WebhookVerifier {
	t.Helper()
	v, err := NewWebhookVerifier(secrets...)
	if err != nil {
		t.Fatal(err)
	}
	v.Now = func() time.Time { return someTime }
	return v
}

func TestWebhookVerifier_Verify(t *testing.T) {
	t.Parallel()
	with := func(name, value string) http.Header {
		h := signed(t, someEvent, someTime, newSecret)
		h.Set(name, value)
		return h
	}
	for name, tc := range map[string]struct {
		header  http.Header
		body    string
		secrets []string
		want    error
	}{
		"good":                      {signed(t, someEvent, someTime, newSecret), someEvent, []string{newSecret}, nil},
		"rotation, sender":          {signed(t, someEvent, someTime, newSecret, oldSecret), someEvent, []string{oldSecret}, nil},
		"rotation, receiver":        {signed(t, someEvent, someTime, oldSecret), someEvent, []string{newSecret, oldSecret}, nil},
		"a signature of a later v2": {with("Webhook-Signature", "v2,x "+signed(t, someEvent, someTime, newSecret).Get("Webhook-Signature")), someEvent, []string{newSecret}, nil},
		"other secret":              {signed(t, someEvent, someTime, oldSecret), someEvent, []string{newSecret}, ErrWebhookSignature},
		"other body":                {signed(t, someEvent, someTime, newSecret), someEvent + " ", []string{newSecret}, ErrWebhookSignature},
		"other id":                  {with("Webhook-Id", "msg_2"), someEvent, []string{newSecret}, ErrWebhookSignature},
		"no signature":              {with("Webhook-Signature", ""), someEvent, []string{newSecret}, ErrWebhookSignature},
		"an empty signature":        {with("Webhook-Signature", "v1,"), someEvent, []string{newSecret}, ErrWebhookSignature},
		"no id":                     {with("Webhook-Id", ""), someEvent, []string{newSecret}, ErrWebhookHeader},
		"no timestamp":              {with("Webhook-Timestamp", "soon"), someEvent, []string{newSecret}, ErrWebhookHeader},
		"another timestamp":         {with("Webhook-Timestamp", strconv.FormatInt(someTime.Unix()+1, 10)), someEvent, []string{newSecret}, ErrWebhookSignature},
		"an old message":            {signed(t, someEvent, someTime.Add(-301*time.Second), newSecret), someEvent, []string{newSecret}, ErrWebhookTime},
		"a message of the future":   {signed(t, someEvent, someTime.Add(301*time.Second), newSecret), someEvent, []string{newSecret}, ErrWebhookTime},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := newVerifier(t, tc.secrets...).Verify(tc.header, []byte(tc.body)); !errors.Is(err, tc.want) {
				t.Errorf("err = %v, want %v", err, tc.want)
			}
		})
	}
}

func TestWebhookVerifier_Read(t *testing.T) {
	t.Parallel()
	request := func(body string) *http.Request {
		r := httptest.NewRequest(http.MethodPost, "/hooks", strings.NewReader(body))
		r.Header = signed(t, body, someTime, newSecret)
		return r
	}
	v := newVerifier(t, newSecret)
	m, err := v.Read(request(someEvent))
	if err != nil || m.ID != "msg_1" || m.Type != "order.confirmed" || m.Timestamp.UnixMilli() != 1893553445060 {
		t.Fatalf("%+v, %v", m, err)
	}
	order, err := m.Order()
	if err != nil || order.ItemID != "demo" || order.Status != OrderStatusConfirmed {
		t.Errorf("%+v, %v", order, err)
	}
	m.Type = "item.sold_out"
	if _, err := m.Order(); err == nil {
		t.Error("an event about an item has an order")
	}
	if _, err := v.Read(request("{")); err == nil {
		t.Error("no error for a body that is not JSON")
	}
	if _, err := v.Read(request(strings.Repeat(" ", maxWebhookBody+1))); !errors.Is(err, ErrWebhookBody) {
		t.Errorf("a large body: %v", err)
	}
	broken := request(someEvent)
	broken.Body = io.NopCloser(io.MultiReader(strings.NewReader("{"), brokenReader{}))
	if _, err := v.Read(broken); !errors.Is(err, ErrWebhookBody) {
		t.Errorf("a lost connection: %v", err)
	}
}

// brokenReader fails.
type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errLost }

func TestNewWebhookVerifier_Err(t *testing.T) {
	t.Parallel()
	for _, secrets := range [][]string{nil, {""}, {"whsec_"}, {"whsec_!"}, {strings.TrimPrefix(newSecret, "whsec_")}} {
		if _, err := NewWebhookVerifier(secrets...); err == nil || strings.Contains(err.Error(), "!") {
			t.Errorf("%q: %v", secrets, err)
		}
	}
}
