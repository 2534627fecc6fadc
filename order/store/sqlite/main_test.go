package sqlite

import (
	"testing"

	"go.uber.org/goleak"

	"flashsale/internal/testing/redistest"
)

func TestMain(m *testing.M) {
	// gorm's cache of statements has a goroutine that Close does not end.
	redistest.Main(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}
