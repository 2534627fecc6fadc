package main

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/order"
)

// admission makes what keeps purchases out for which the orders that wait leave no
// room, and has it look at the queues.
func (a *app) admission() *order.Pressure {
	loaders := make([]order.Loader, len(a.queues))
	for i, q := range a.queues {
		loaders[i] = q
	}
	p := order.NewPressure(order.PressureConfig{
		Queues: loaders, Partition: a.service.Stock.Partition, MaxAge: a.settings.QueueAge,
		Volatile: a.service.Volatile, Database: a.writes, OnError: a.reporter("admission"),
	})
	a.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "flashsale_admission_shut_queues",
		Help: "Order queues at capacity, by partition; their purchases are refused.",
	}, func() float64 { return float64(p.Shut()) }))
	a.life.add(part{name: "admission", run: p.Run})
	return p
}

// addWriteProbe adds the check whether the database takes writes, for readiness and
// for admission.
func (a *app) addWriteProbe(r role) error {
	effect := "accepted orders wait"
	if r.api {
		effect = "purchases get 503"
	}
	log := a.log.With().Str("component", "database").Logger()
	p, err := order.NewWriteProbe(a.store, func(err error) {
		switch {
		case errors.Is(err, order.ErrBusy):
			log.Error().Err(err).Msg("database is busy: no write has succeeded for seconds")
		case err != nil:
			log.Error().Err(err).Msg("database refuses writes; " + effect)
		default:
			log.Info().Msg("database accepts writes again")
		}
	})
	if err != nil {
		return err
	}
	a.writes = p
	a.life.closing("write probe", p.Close)
	a.life.add(part{name: "write probe", run: p.Run})
	return nil
}
