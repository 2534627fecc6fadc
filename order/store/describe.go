package store

import "context"

// Description is what the database shows of itself.
type Description struct {
	Engine  string // "sqlite" or "postgres"
	Version string
	// Settings determine what survives a crash, in a fixed order.
	Settings []Setting
	// Server describes the server of Postgres; nil on SQLite.
	Server *Server
}

// Setting is a setting of the database.
type Setting struct{ Name, Value string }

// Setting returns the value of a setting; "" if the database shows none of that name.
func (d *Description) Setting(name string) string {
	for _, s := range d.Settings {
		if s.Name == name {
			return s.Value
		}
	}
	return ""
}

// Describe reads the description, which does not depend on the size of the database. Errors:
// ErrDatabase.
func Describe(ctx context.Context, s *Store) (Description, error) {
	if s.Postgres() {
		return describePostgres(ctx, s)
	}
	var d struct{ Version, JournalMode string }
	const read = "SELECT sqlite_version() AS version, (SELECT journal_mode FROM pragma_journal_mode) AS journal_mode"
	if err := s.read.WithContext(ctx).Raw(read).Scan(&d).Error; err != nil {
		return Description{}, Wrap("describe database", err)
	}
	// In the journal mode "wal", readers and the writer do not block each other.
	return Description{Engine: "sqlite", Version: d.Version, Settings: []Setting{
		{"journal_mode", d.JournalMode}, {"synchronous", WriteParams().Get("_synchronous")},
	}}, nil
}
