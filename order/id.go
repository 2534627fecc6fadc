package order

import (
	"sync"

	"github.com/google/uuid"
)

// EnableRandPool makes uuid read its randomness in larger blocks: one system call for each
// id would slow purchases measurably.
var EnableRandPool = sync.OnceFunc(uuid.EnableRandPool)
