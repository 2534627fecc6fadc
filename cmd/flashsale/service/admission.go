package service

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/order/admission"
	"flashsale/order/store"
)

// newAdmission returns the admission control, which refuses purchases when too many orders
// wait, and makes it poll the queues.
func newAdmission(sh *shared, ps *parts) *admission.Pressure {
	e, eng := sh.env, sh.eng
	loaders := make([]admission.Loader, len(eng.queues))
	for i, q := range eng.queues {
		loaders[i] = q
	}
	p := admission.NewPressure(admission.PressureConfig{
		Queues: loaders, Partition: eng.partition, MaxAge: e.settings.QueueAge,
		Volatile: e.embedded(), Database: sh.writes, OnError: e.reporter("admission"),
	})
	e.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "flashsale_admission_shut_queues",
		Help: "Order queues at capacity, by partition; their purchases are refused.",
	}, func() float64 { return float64(p.Shut()) }))
	ps.add(part{name: "admission", run: p.Run})
	return p
}

// newWriteProbe adds the check whether the database accepts writes, for readiness and for
// admission.
func newWriteProbe(e *env, store *store.Store, ps *parts) (*admission.WriteProbe, error) {
	effect := "accepted orders wait"
	if e.role.api {
		effect = "purchases get 503"
	}
	log := e.log.With().Str("component", "database").Logger()
	p, err := admission.NewWriteProbe(store, func(err error) {
		switch {
		case errors.Is(err, admission.ErrBusy):
			log.Error().Err(err).Msg("database is busy: no write has succeeded for seconds")
		case err != nil:
			log.Error().Err(err).Msg("database refuses writes; " + effect)
		default:
			log.Info().Msg("database accepts writes again")
		}
	})
	if err != nil {
		return nil, err
	}
	ps.closing("write probe", p.Close)
	ps.add(part{name: "write probe", run: p.Run})
	return p, nil
}
