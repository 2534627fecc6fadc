package ordertest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// ErrRefused is the text of the errors of [Refuse].
const ErrRefused = "refused by the test"

// Refuse makes the database refuse an operation, INSERT or UPDATE, on the rows of a table for
// which a condition on "new" is true; "" refuses all. allow ends that.
func Refuse(t testing.TB, s Database, operation, table, condition string) (allow func()) {
	t.Helper()
	exec := func(statements ...string) {
		t.Helper()
		for _, statement := range statements {
			if err := s.Writer().Exec(statement).Error; err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
	}
	name := strings.ToLower("refuse_" + operation + "_" + table)
	if condition != "" {
		condition = "WHEN (" + condition + ")"
	}
	head := fmt.Sprintf("CREATE TRIGGER %s BEFORE %s ON %s FOR EACH ROW %s", name, operation, table, condition)
	drop := "DROP TRIGGER " + name
	if s.Postgres() {
		exec("CREATE FUNCTION "+name+"() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''"+ErrRefused+"''; END'",
			head+" EXECUTE FUNCTION "+name+"()")
		drop = "DROP FUNCTION " + name + " CASCADE"
	} else {
		exec(head + " BEGIN SELECT RAISE(ABORT, '" + ErrRefused + "'); END")
	}
	return sync.OnceFunc(func() { exec(drop) })
}
