package sqlite

import (
	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

const (
	sqlInsertPrinted = `INSERT INTO printed (message, run, stream, text, left_out) VALUES (?, ?, ?, ?, ?)`
	sqlPrinted       = `SELECT run, stream, text, left_out FROM printed WHERE message = ? ORDER BY run, stream DESC` // stdout first
	sqlRemovePrinted = `DELETE FROM printed WHERE message = ?`
)

// printed writes what a run printed.
func (t *tx) printed(id message.ID, run int64, list []message.Printed) error {
	for _, p := range list {
		if err := t.run(sqlInsertPrinted, id, run, p.Stream, p.Text, p.Left); err != nil {
			return err
		}
	}
	return nil
}

// addPrinted reads a row of sqlPrinted into the timeline, whose runs are there.
func addPrinted(tl *store.Timeline, row scanner) error {
	var run int64
	var p message.Printed
	err := row.Scan(&run, &p.Stream, &p.Text, &p.Left)
	for i := range tl.Runs {
		if r := &tl.Runs[i]; r.ID == run {
			r.Outcome.Printed = append(r.Outcome.Printed, p)
		}
	}
	return err
}
