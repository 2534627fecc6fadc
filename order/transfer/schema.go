package transfer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// kind is the type of a column's values.
type kind int

const (
	text kind = iota + 1
	integer
	small // an integer of 16 bits
)

// kinds are those of the types of both schemas.
var kinds = map[string]kind{"TEXT": text, "INTEGER": integer, "BIGINT": integer, "SMALLINT": small}

type column struct {
	name string
	kind kind
}

// table is a table as the schema describes it.
type table struct {
	name    string
	columns []column
	key     []int // the columns of the primary key, by their number
	counted bool  // the database assigns the only column of the key
}

// The columns of every table: its name, theirs, their type, their place in the primary key (0:
// none), and whether the database assigns them.
const (
	sqliteTables = `SELECT m.name, c.name, upper(c.type), c.pk, m.sql LIKE '%AUTOINCREMENT%' AND c.pk > 0
		FROM sqlite_schema AS m JOIN pragma_table_info(m.name) AS c
		WHERE m.type = 'table' AND m.name NOT LIKE 'goose%' AND m.name NOT LIKE 'sqlite%' ORDER BY m.name, c.cid`
	postgresTables = `SELECT CAST(c.relname AS TEXT), CAST(a.attname AS TEXT), upper(format_type(a.atttypid, a.atttypmod)),
			CAST(COALESCE(array_position(k.conkey, a.attnum), 0) AS BIGINT), a.attidentity <> ''
		FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		LEFT JOIN pg_constraint AS k ON k.conrelid = c.oid AND k.contype = 'p'
		WHERE c.relnamespace = CAST(current_schema() AS regnamespace) AND c.relkind = 'r' AND c.relname NOT LIKE 'goose%'
		ORDER BY c.relname COLLATE "C", a.attnum`
)

// readTables reads the tables of a database in the order in which they are copied. Triggers on
// orders change items, so items come after them: while the orders are copied, there is no item
// to change.
func readTables(ctx context.Context, db querier, query string) (list []table, err error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("read the schema: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	keys := make(map[string]map[int]int) // number of a column by its place in the key
	for rows.Next() {
		if list, err = addColumn(list, keys, rows); err != nil {
			return nil, fmt.Errorf("read the schema: %w", err)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the schema: %w", err)
	}
	for i := range list {
		places := keys[list[i].name]
		for place := 1; place <= len(places); place++ {
			list[i].key = append(list[i].key, places[place])
		}
		if len(places) == 0 {
			return nil, fmt.Errorf("table %s has no primary key", list[i].name)
		}
	}
	slices.SortStableFunc(list, func(a, b table) int { return late(a.name) - late(b.name) })
	return list, nil
}

// late orders the tables that are copied last.
func late(name string) int { return slices.Index([]string{"items", metaTable}, name) }

func addColumn(list []table, keys map[string]map[int]int, rows *sql.Rows) ([]table, error) {
	var name, typ string
	var c column
	var place int
	var assigned bool
	if err := rows.Scan(&name, &c.name, &typ, &place, &assigned); err != nil {
		return nil, err
	}
	if c.kind = kinds[typ]; c.kind == 0 {
		return nil, fmt.Errorf("column %s.%s has the unknown type %s", name, c.name, typ)
	}
	if len(list) == 0 || list[len(list)-1].name != name {
		list = append(list, table{name: name})
		keys[name] = make(map[int]int)
	}
	t := &list[len(list)-1]
	if place > 0 {
		keys[name][place] = len(t.columns)
	}
	t.columns = append(t.columns, c)
	t.counted = t.counted || assigned
	return list, nil
}

// sameTables fails unless both databases have the same tables, columns and keys.
func sameTables(a, b []table) error {
	describe := func(list []table) string {
		var lines []string
		for i := range list {
			lines = append(lines, list[i].name+" "+strings.Join(list[i].names(), " ")+fmt.Sprint(list[i].key))
		}
		return strings.Join(lines, "\n")
	}
	if x, y := describe(a), describe(b); x != y {
		return fmt.Errorf("the schemas of the two databases differ:\n%s\n\n%s", x, y)
	}
	return nil
}

// narrow adds the limits and counters of the same table in the other database.
func (t *table) narrow(other *table) {
	t.counted = t.counted || other.counted
	for i := range t.columns {
		t.columns[i].kind = max(t.columns[i].kind, other.columns[i].kind)
	}
}

func (t *table) quoted() string { return `"` + t.name + `"` }

// names are the columns.
func (t *table) names() []string {
	out := make([]string, len(t.columns))
	for i, c := range t.columns {
		out[i] = c.name
	}
	return out
}

// list is the list of some columns in a statement.
func list(names []string) string { return `"` + strings.Join(names, `", "`) + `"` }

// keyNames are the columns of the key.
func (t *table) keyNames() []string {
	out := make([]string, len(t.key))
	for i, n := range t.key {
		out[i] = t.columns[n].name
	}
	return out
}

// describeRow names a row by its key.
func (t *table) describeRow(row []any) string {
	parts := make([]string, len(t.key))
	for i, n := range t.key {
		parts[i] = fmt.Sprintf("%s = %q", t.columns[n].name, fmt.Sprint(row[n]))
	}
	return strings.Join(parts, ", ")
}
