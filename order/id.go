package order

import (
	"sync"

	"github.com/google/uuid"
)

// enableRandPool makes uuid read its randomness in larger blocks: one system call for each
// id would slow purchases measurably.
var enableRandPool = sync.OnceFunc(uuid.EnableRandPool)
