package privacy

import (
	"fmt"
	"strings"
	"testing"

	"flashsale/order/shoptest"
)

// addAuditEntries adds an entry of alice, one about her, and one about bob.
func addAuditEntries(t *testing.T, s *shoptest.Shop, alice, bob string) {
	t.Helper()
	for _, entry := range [][2]string{{alice, `{"a":1}`}, {"root", `{"user_id":"` + alice + `"}`}, {"root", `{"user_id":"` + bob + `"}`}} {
		err := s.Store.Writer().Exec("INSERT INTO audit (at, actor, action, before) VALUES (1, ?, 'test', ?)", entry[0], entry[1]).Error
		if err != nil {
			t.Fatal(err)
		}
	}
	// The last one of a page.
	if err := s.Store.Writer().Exec("INSERT INTO audit (id, at, actor, action) VALUES (?, 1, ?, 'test')", auditScan, alice).Error; err != nil {
		t.Fatal(err)
	}
}

// checkErasureAudit checks that the audit records the erasure, and the changes by others.
func checkErasureAudit(t *testing.T, s *shoptest.Shop, pseudonym, bob string) {
	t.Helper()
	var after []string
	err := s.Store.Reader().Raw("SELECT actor || ' ' || action || ' ' || item_id || ' ' || request_id || ' ' || before || ' ' || after FROM audit WHERE action <> 'item.create' ORDER BY CASE WHEN id = ? THEN 0 ELSE id END", auditScan).Scan(&after).Error
	if err != nil {
		t.Fatal(err)
	}
	note := func(item string, orders int) string {
		return fmt.Sprintf(`root buyer.erase %s req-1  {"pseudonym":%q,"orders":%d,"reason":"asked for by letter 7"}`, item, pseudonym, orders)
	}
	want := []string{
		pseudonym + ` test    `, pseudonym + ` test   {"a":1} `, `root test   {"user_id":"` + pseudonym + `"} `, `root test   {"user_id":"` + bob + `"} `,
		note(s.Item, 4), note("", 0),
	}
	if fmt.Sprint(after) != fmt.Sprint(want) {
		t.Errorf("audit\n%s\nwant\n%s", strings.Join(after, "\n"), strings.Join(want, "\n"))
	}
}
