package webhooks

import (
	"strings"
	"testing"

	"flashsale/order/ordertest"
	"flashsale/order/store/storetest"
)

// TestDeliveryFilter_Plans: an index leads to each page of a list of deliveries.
func TestDeliveryFilter_Plans(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := storetest.New(t)
	for state, want := range map[DeliveryState]string{
		"": "(endpoint_id=? AND event_seq<?)", DeliveryDead: "webhook_deliveries_dead (endpoint_id=? AND event_seq<?)",
		DeliveryPending:   "(endpoint_id=? AND event_seq>? AND event_seq<?)",
		DeliveryDelivered: "(endpoint_id=? AND event_seq>? AND event_seq<?)",
	} {
		query, args, look := DeliveryFilter{EndpointID: "e", State: state, Limit: 20}.statement()
		if look {
			if plan := ordertest.Plan(t, s, floorOfDeliveries, "e", 9, 9); !strings.Contains(plan, "(endpoint_id=? AND event_seq<?)") || strings.Contains(plan, "SCAN") {
				t.Errorf("plan of the floor:\n%s", plan)
			}
			args = append(args, 0)
		}
		plan := ordertest.Plan(t, s, query, args...)
		if !strings.Contains(plan, want) || strings.Contains(plan, "SCAN") || strings.Contains(plan, "TEMP B-TREE") {
			t.Errorf("plan of %s:\n%s\nwant %s", query, plan, want)
		}
	}
}
