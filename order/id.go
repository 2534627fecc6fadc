package order

import (
	"sync"

	"github.com/google/uuid"
)

// enableRandPool makes ids take their randomness from a pool read ahead: a
// system call for each would show in the cost of a purchase.
var enableRandPool = sync.OnceFunc(uuid.EnableRandPool)
