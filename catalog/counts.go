package catalog

import "sync/atomic"

// counts counts where answers come from.
type counts struct {
	memory, redis, database                      atomic.Int64
	stale, refused, negative, questions, invalid atomic.Int64
}

// Stats are the counts of a catalogue since it began. Readers that wait for the
// same look count once.
type Stats struct {
	Memory    int64 // items answered from memory, the stale ones among them
	Redis     int64 // items and negative entries taken from Redis
	Database  int64 // items asked of the database
	Stale     int64 // items answered from memory although they were to be loaded again
	Refused   int64 // ids refused by the filter
	Negative  int64 // ids refused because they were searched for in vain before
	Questions int64 // questions to the database, of whatever kind
	Changed   int64 // items forgotten because somebody changed them
}

// Stats returns the counts.
func (c *Catalog) Stats() Stats {
	n := &c.counts
	return Stats{
		Memory: n.memory.Load(), Redis: n.redis.Load(), Database: n.database.Load(), Stale: n.stale.Load(),
		Refused: n.refused.Load(), Negative: n.negative.Load(), Questions: n.questions.Load(), Changed: n.invalid.Load(),
	}
}
