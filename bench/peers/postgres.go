package main

import (
	"context"
	"database/sql"
	"net/http"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"flashsale/internal/testing/postgresserver"
)

// postgresConnections is the size of the pool. More would only wait for the same row.
const postgresConnections = 32

// postgresContender does everything in one transaction on Postgres: SELECT ... FOR UPDATE locks
// the item's row, then it checks the key, the buyer's limit and the stock, decrements, inserts
// the order and answers 201. It uses GORM, as many services do.
//
// It lacks: purchases of one item side by side, because each holds the row until its commit is
// on disk.
func postgresContender() contender {
	return contender{
		name: "postgres", approach: "SELECT ... FOR UPDATE and INSERT in one Postgres transaction", answer: http.StatusCreated,
		patience: defaultPatience, prepare: preparePostgres, missing: postgresserver.Missing,
		open: openPostgresSeller,
	}
}

type postgresSeller struct{ db *gorm.DB }

func openPostgresSeller(_ context.Context, s settings) (seller, error) {
	db, err := gorm.Open(postgres.Open(s.db), &gorm.Config{
		PrepareStmt: true, SkipDefaultTransaction: true, Logger: logger.Default.LogMode(logger.Silent),
	})
	if err != nil {
		return nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	pool.SetMaxOpenConns(postgresConnections)
	pool.SetMaxIdleConns(postgresConnections)
	return postgresSeller{db}, nil
}

// itemRow and orderRow are rows of the tables; see schema.
type itemRow struct {
	ID    string `gorm:"primaryKey"`
	Stock int64
}

func (itemRow) TableName() string { return "items" }

type orderRow struct {
	ID             string `gorm:"primaryKey"`
	ItemID         string
	UserID         string
	IdempotencyKey string
	Quantity       int64
	UnitPriceMinor int64
	Currency       string
	Status         string
	CreatedAt      int64 `gorm:"autoCreateTime:false"`
}

func (orderRow) TableName() string { return "orders" }

func (p postgresSeller) sell(ctx context.Context, o order) (id string, err error) {
	err = p.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		id, err = sellLocked(tx, o)
		return err
	})
	return id, err
}

// sellLocked sells while the transaction holds the item's row.
func sellLocked(tx *gorm.DB, o order) (string, error) {
	var item itemRow
	if err := tx.Clauses(clause.Locking{Strength: clause.LockingStrengthUpdate}).Take(&item, "id = ?", o.Item).Error; err != nil {
		return "", err
	}
	var earlier []orderRow
	if err := tx.Find(&earlier, "item_id = ? AND user_id = ?", o.Item, o.Buyer).Error; err != nil {
		return "", err
	}
	var held int64
	for _, e := range earlier {
		if e.IdempotencyKey == o.Key {
			return e.ID, nil
		}
		held += e.Quantity
	}
	switch {
	case held+o.Quantity > perBuyer:
		return "", errLimit
	case item.Stock < o.Quantity:
		return "", errSoldOut
	}
	if err := tx.Model(&item).UpdateColumn("stock", gorm.Expr("stock - ?", o.Quantity)).Error; err != nil {
		return "", err
	}
	return o.ID, tx.Create(&orderRow{
		ID: o.ID, ItemID: o.Item, UserID: o.Buyer, IdempotencyKey: o.Key, Quantity: o.Quantity,
		UnitPriceMinor: unitPrice, Currency: currency, Status: "confirmed", CreatedAt: o.Created.UnixMilli(),
	}).Error
}

func (p postgresSeller) close(context.Context) error {
	pool, err := p.db.DB()
	if err != nil {
		return err
	}
	return pool.Close()
}

// postgresSettings are Postgres's own defaults, where those of package postgresserver differ.
var postgresSettings = []string{"max_connections=100", "shared_buffers=128MB", "dynamic_shared_memory_type=posix"}

// preparePostgres starts a Postgres server for the rig, which syncs every commit.
func preparePostgres(ctx context.Context, s *rig) (err error) {
	if s.postgres, err = postgresserver.Start(ctx, postgresserver.Config{Sync: true, Settings: postgresSettings}); err != nil {
		return err
	}
	url := s.postgres.URL(postgresserver.Superuser)
	if s.db, err = sql.Open("pgx", url); err != nil {
		return err
	}
	if _, err := s.db.ExecContext(ctx, schema); err != nil {
		return err
	}
	s.stock = sqlStock{s.db}
	return s.serveSelf("", url)
}
