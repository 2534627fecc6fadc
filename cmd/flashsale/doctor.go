package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/internal/breaker"
	"flashsale/inventory"
	"flashsale/migrations"
	"flashsale/order"
	"flashsale/queue"
)

// The bounds of the doctor's patience and of what it calls healthy.
const (
	doctorTimeout  = 30 * time.Second
	doctorSlow     = 5 * time.Millisecond // for one exchange with Redis, the median of doctorPings
	doctorPings    = 21
	doctorFiles    = 10_000  // open files a process may have, one for each connection
	doctorDisk     = 1 << 30 // free bytes beside the database
	doctorMinRedis = 6       // the oldest major version with all that the scripts use
)

// The levels of a finding.
const (
	levelOK   = "ok"
	levelNote = "note" // nothing is wrong, but it could be better
	levelWarn = "warn"
	levelFix  = "fix"
)

// finding is what the doctor says of one part.
type finding struct {
	level string
	part  string
	says  string
	mend  string // what to do; empty where all is well
}

// doctor looks at everything a process of the service stands on. It changes
// nothing, and may be run beside the service.
type doctor struct {
	settings *config.Settings
	now      func() time.Time // this machine's clock
	found    []finding
}

func (d *doctor) ok(part, says string, args ...any) {
	d.found = append(d.found, finding{levelOK, part, fmt.Sprintf(says, args...), ""})
}

func (d *doctor) warn(part, says, mend string) {
	d.found = append(d.found, finding{levelWarn, part, says, mend})
}

func (d *doctor) fix(part, says, mend string) {
	d.found = append(d.found, finding{levelFix, part, says, mend})
}

// failed notes an error of loading a part, which names its own mend.
func (d *doctor) failed(part string, err error) { d.fix(part, err.Error(), "") }

// errUnhealthy makes the exit code 1.
var errUnhealthy = errors.New("something is to be fixed")

func newDoctor() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Check Redis, database, clock, keys and workers, and say what to fix; exit 1 when something is", Args: config.NoArgs,
		Long: "doctor looks at what a process with these settings would stand on: its keys, its data\n" +
			"directory, the database, Redis, the clock and the workers. It changes nothing, so it may be run beside the\n" +
			"service. Lines with \"note\" or \"warn\" are worth a look; with one of \"fix\" the exit code is 1.",
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := config.Load(c.Flags())
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), doctorTimeout)
			defer cancel()
			d := &doctor{settings: s, now: time.Now}
			d.keys(ctx)
			d.process()
			recorded := d.database(ctx)
			d.redis(ctx, recorded)
			return d.print(c.OutOrStdout())
		},
	}
}

func (d *doctor) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	ill := false
	for _, f := range d.found {
		ill = ill || f.level == levelFix
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.level, f.part, f.says)
		if f.mend != "" {
			fmt.Fprintf(w, "\t\t-> %s\n", f.mend)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if ill {
		return errUnhealthy
	}
	return nil
}

// keys looks at what tokens are verified with.
func (d *doctor) keys(ctx context.Context) {
	s := d.settings
	if s.JWTSecret == "" && s.JWKS == "" && !s.Identity.Separate() {
		d.devKey()
		return
	}
	err := s.NeedKey("api")
	if err == nil {
		_, err = s.OpenVerifier(ctx, nil, func(error) {})
	}
	if err != nil {
		d.failed("keys", err)
		return
	}
	if s.JWTSecret != "" {
		d.ok("keys", "a secret of %d bytes verifies the tokens", len(s.JWTSecret))
	} else {
		d.ok("keys", "the key set %s can be read", config.RedactURL(s.JWKS))
	}
	switch i := &s.Identity; {
	case i.AdminSecret != "":
		d.ok("keys", "a secret of %d bytes verifies the tokens of admins", len(i.AdminSecret))
	case i.AdminJWKS != "":
		d.ok("keys", "the key set %s of admins can be read", config.RedactURL(i.AdminJWKS))
	case i.Separate():
		d.ok("keys", "admins need tokens of an issuer or an audience of their own")
	default:
		d.found = append(d.found, finding{levelNote, "keys", "buyers and admins share a key: whatever signs tokens for buyers can sign for admins",
			"give admins a key of their own (FLASHSALE_ADMIN_JWT_SECRET or FLASHSALE_ADMIN_JWKS), see docs/identity.md"})
	}
}

// devKey looks at development mode's key without making one.
func (d *doctor) devKey() {
	path := filepath.Join(d.settings.DataDir, config.DevKeyFile)
	const mend = "set FLASHSALE_JWT_SECRET or FLASHSALE_JWKS before real money is taken"
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.warn("keys", "there is no key: flashsale serve would run in development mode and make one", mend)
	case err != nil:
		d.failed("keys", err)
	case info.Mode().Perm()&0o077 != 0:
		d.fix("keys", fmt.Sprintf("development key %s can be read by others (%v)", path, info.Mode().Perm()), "chmod 600 "+path)
	default:
		d.warn("keys", "development mode: whoever can reach /dev/tokens can be anybody", mend)
	}
}

// process looks at what the system grants a process.
func (d *doctor) process() {
	n, known := backend.FileLimit()
	switch {
	case !known:
	case n < doctorFiles:
		d.warn("system", fmt.Sprintf("a process may have %d files open, one for each connection", n),
			"raise the limit (ulimit -n, LimitNOFILE) above the connections you expect")
	case uint64(d.settings.MaxStreams) > backend.StreamFiles(n):
		d.warn("system", fmt.Sprintf("max-streams is %d, but a process may have %d files open, and event streams take half of them at most", d.settings.MaxStreams, n),
			"raise the limit (ulimit -n, LimitNOFILE), or lower max-streams")
	default:
		d.ok("system", "a process may have %d files open", n)
	}
}

// database looks at the database, and returns the partitions it was laid out
// for; 0 where that is not known.
func (d *doctor) database(ctx context.Context) (partitions int) {
	s := d.settings
	path := strings.TrimPrefix(s.DB, "sqlite:")
	const migrate = "run flashsale migrate up, or flashsale serve, which does it"
	// Opening it would make it.
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		d.warn("database", "there is none at "+path+" yet", migrate)
		return 0
	}
	store, err := order.OpenStore(ctx, s.DB)
	if err != nil {
		d.fix("database", err.Error(), backend.DatabaseFix(err))
		return 0
	}
	defer func() {
		if err := store.Close(); err != nil {
			d.failed("database", err)
		}
	}()
	if free, known := freeBytes(filepath.Dir(path)); known && free < doctorDisk {
		d.warn("database", fmt.Sprintf("%d MiB are free beside it", free>>20), "make room: a full disk stops the commits, and purchases with them")
	}
	if err := backend.CheckSchema(ctx, store); err != nil {
		if errors.Is(err, migrations.ErrPending) {
			d.fix("database", "its schema is older than this program, or it is empty", migrate)
		} else {
			d.fix("database", "its schema cannot be read: "+err.Error(), "see that the file is a database of this service, and not locked")
		}
		return 0
	}
	c, err := store.Checkup(ctx)
	switch {
	case err != nil:
		d.fix("database", err.Error(), "see that the file can be read and is not locked")
		return 0
	case len(c.Damage) > 0:
		d.fix("database", "the file is damaged: "+strings.Join(c.Damage, "; "), "stop every process, and restore the last copy")
	case c.JournalMode != "wal":
		d.warn("database", "its journal mode is "+c.JournalMode+", not wal", "see that the file system allows shared memory; network file systems do not")
	default:
		d.ok("database", "%s is whole and its schema is up to date (epoch %d)", path, c.Epoch)
	}
	if c.Partitions != 0 && c.Partitions != s.Partitions {
		d.fix("partitions", fmt.Sprintf("the setting is %d, and the database was laid out for %d", s.Partitions, c.Partitions),
			fmt.Sprintf("set --partitions %d", c.Partitions))
	}
	return c.Partitions
}

// redis looks at Redis: what it keeps, how fast it answers, whose data it has.
func (d *doctor) redis(ctx context.Context, partitions int) {
	s := d.settings
	if s.Redis == config.EmbeddedRedis {
		d.ok("redis", "embedded: it lives and ends with flashsale serve; every purchase waits for its commit")
		return
	}
	backend.LogRedis(zerolog.Nop()) // the findings say it better
	rdb, closers, err := backend.OpenRedis(s.Redis, breaker.New(breaker.Config{}), func() {})
	if err != nil {
		d.failed("redis", err)
		return
	}
	defer func() {
		for _, done := range closers {
			if err := done(); err != nil {
				d.failed("redis", err)
			}
		}
	}()
	if err := rdb.Ping(ctx).Err(); err != nil {
		d.fix("redis", fmt.Sprintf("%s does not answer: %v", config.RedactURL(s.Redis), err), "start it, or correct the address")
		return
	}
	says, change := backend.Durability(ctx, rdb, s.Redis)
	d.ok("redis", "%s", says)
	for _, c := range change {
		if c.Must {
			d.fix("redis", c.Says, c.Fix)
		} else {
			d.warn("redis", c.Says, c.Fix)
		}
	}
	d.server(ctx, rdb)
	d.pace(ctx, rdb)
	if partitions == 0 {
		partitions = s.Partitions
	}
	d.clock(ctx, rdb, partitions)
	d.contents(ctx, rdb, partitions)
}

// server looks at the version and the role of the Redis that answers.
func (d *doctor) server(ctx context.Context, rdb redis.UniversalClient) {
	text, err := rdb.Info(ctx, "server", "replication", "memory").Result()
	if err != nil {
		d.warn("redis", "it does not tell about itself: "+err.Error(), "allow INFO for this user, if you want it checked")
		return
	}
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	var major int
	if _, err := fmt.Sscanf(info["redis_version"], "%d", &major); err == nil && major < doctorMinRedis {
		d.fix("redis", "its version is "+info["redis_version"], fmt.Sprintf("use version %d or later", doctorMinRedis))
	}
	if role := info["role"]; role != "" && role != "master" {
		d.fix("redis", "it is a replica, and refuses writes", "name the primary, at "+info["master_host"]+":"+info["master_port"])
	}
	if info["maxmemory"] == "0" {
		d.warn("redis", "maxmemory is not set: Redis grows until the system stops it", "set maxmemory, with maxmemory-policy noeviction")
	}
}

// pace looks at how fast Redis answers.
func (d *doctor) pace(ctx context.Context, rdb redis.UniversalClient) {
	took := make([]time.Duration, doctorPings)
	for i := range took {
		began := time.Now()
		if err := rdb.Ping(ctx).Err(); err != nil {
			d.fix("redis", "it stopped answering: "+err.Error(), "see its log")
			return
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	if median := took[doctorPings/2]; median > doctorSlow {
		d.warn("redis", fmt.Sprintf("an exchange takes %v (median of %d)", median.Round(10*time.Microsecond), doctorPings),
			"bring it nearer: each batch of purchases is one exchange")
	} else {
		d.ok("redis", "an exchange takes %v (median of %d)", median.Round(10*time.Microsecond), doctorPings)
	}
}

// clock compares this machine's clock with that of every Redis server that keeps
// a partition, as the service does.
func (d *doctor) clock(ctx context.Context, rdb redis.UniversalClient, partitions int) {
	clock := inventory.NewClock(rdb, partitions, d.now)
	if err := clock.Measure(ctx); err != nil {
		d.warn("clock", "it cannot be compared with the Redis clock: "+err.Error(), "allow TIME for this user")
		return
	}
	offset := clock.Offset()
	if offset.Abs() > backend.MaxClockSkew {
		d.fix("clock", fmt.Sprintf("the Redis clock minus this machine's is %v: %s", offset.Round(time.Millisecond), backend.ClockEffect), backend.ClockFix)
	} else {
		d.ok("clock", "the Redis clock minus this machine's is %v", offset.Round(time.Microsecond))
	}
}

// contents looks at what the service itself has put into Redis.
func (d *doctor) contents(ctx context.Context, rdb redis.UniversalClient, partitions int) {
	switch have, err := inventory.RecordedPartitions(ctx, rdb); {
	case err != nil:
		d.failed("partitions", err)
		return
	case have != 0 && have != partitions:
		d.fix("partitions", fmt.Sprintf("this Redis was laid out for %d, and %d is wanted", have, partitions),
			"name the Redis that belongs to the database, or set the number that is recorded")
		return
	case have == 0:
		d.ok("queue", "this Redis holds nothing of the service yet")
		return
	}
	waiting := 0 // accepted orders that are not committed
	for p := range partitions {
		s := d.queue(ctx, rdb, fmt.Sprintf("orders-%d", p), inventory.QueuePrefix(p))
		waiting += s.Ready + s.Delayed + s.Leased
		d.queue(ctx, rdb, fmt.Sprintf("expiries-%d", p), inventory.ExpiryQueuePrefix(p))
	}
	d.workers(ctx, rdb, waiting)
	d.age(ctx, rdb, partitions)
}

// workers checks that a worker is live and fetches. Without one, orders that wait are
// a fault, and an idle service is worth a warning.
func (d *doctor) workers(ctx context.Context, rdb redis.UniversalClient, waiting int) {
	registry, err := queue.NewRegistry(rdb, queue.RegistryConfig{Key: order.WorkersKey})
	if err != nil {
		d.failed("workers", err)
		return
	}
	w, err := registry.List(ctx)
	if err != nil {
		d.failed("workers", err)
		return
	}
	says := noWorker(w)
	switch {
	case says == "":
		last := "no fetch yet"
		if !w.FetchedAt.IsZero() {
			last = fmt.Sprintf("last fetch %v ago", w.Now.Sub(w.FetchedAt).Round(time.Second))
		}
		d.ok("workers", "%d live, %s", len(w.Live), last)
	case waiting > 0:
		mend := "start flashsale worker"
		if len(w.Live) > 0 {
			mend = fmt.Sprintf("read the log of the worker on %s, and check that the database is writable", w.Live[0].Host)
		}
		d.fix("workers", fmt.Sprintf("%d accepted orders wait, and %s", waiting, says), mend)
	default:
		d.warn("workers", says+"; no order waits", "start flashsale worker before the sale opens")
	}
}

// noWorker says since when no worker has fetched; empty if one does.
func noWorker(w queue.Workers) string {
	switch {
	case order.WorkerTrouble(w) == "":
		return ""
	case !w.FetchedAt.IsZero():
		return "no worker has fetched since " + w.FetchedAt.Format(time.RFC3339)
	case w.SeenAt.IsZero():
		return "no worker has ever registered"
	default:
		return "no worker has ever fetched"
	}
}

// age compares the database with what Redis has seen of it.
func (d *doctor) age(ctx context.Context, rdb redis.UniversalClient, partitions int) {
	if _, err := os.Stat(strings.TrimPrefix(d.settings.DB, "sqlite:")); err != nil {
		return // reported before
	}
	store, err := order.OpenStore(ctx, d.settings.DB)
	if err != nil {
		return // reported before
	}
	defer func() {
		if err := store.Close(); err != nil {
			d.failed("database", err)
		}
	}()
	if backend.CheckSchema(ctx, store) != nil {
		return // reported before
	}
	behind, err := order.FindBehind(ctx, store, rdb, partitions)
	switch {
	case err != nil:
		d.failed("database", err)
	case len(behind) > 0:
		b := &behind[0]
		d.fix("database", fmt.Sprintf("it is older than Redis, as after the restore of a backup: %d sales are stopped, the first is %s (revision %d in the database, %d in Redis)",
			len(behind), b.ItemID, b.Database, b.Redis), "decide with flashsale recover --from redis or --from database; see docs/backup.md")
	default:
		d.ok("database", "it is not older than Redis")
	}
}

// queue looks at one task queue.
func (d *doctor) queue(ctx context.Context, rdb redis.UniversalClient, name, prefix string) queue.Stats {
	q, err := queue.New(rdb, queue.Config{Prefix: prefix})
	if err != nil {
		d.failed("queue", err)
		return queue.Stats{}
	}
	s, err := q.Stats(ctx)
	switch {
	case err != nil:
		d.failed("queue", err)
	case s.Dead > 0:
		d.warn("queue", fmt.Sprintf("%s holds %d dead letters", name, s.Dead), "see flashsale queue dead, then retry or discard them")
	case s.Paused:
		d.warn("queue", name+" is paused", "resume it, or nothing is committed")
	case s.OldestReady > time.Minute:
		d.warn("queue", fmt.Sprintf("%s: a task waits for %v", name, s.OldestReady.Round(time.Second)), "see that a worker runs")
	default:
		d.ok("queue", "%s: %d ready, %d delayed, %d leased, no dead letters", name, s.Ready, s.Delayed, s.Leased)
	}
	return s
}
