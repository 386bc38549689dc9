package sqlite

import (
	"bytes"
	"database/sql"
	"fmt"
	"time"

	"coppice.dev/coppice/internal/message"
)

// scanner is a row that can be read: *sql.Row or *sql.Rows.
type scanner interface{ Scan(dest ...any) error }

// timeCol reads a column of microseconds; NULL is the zero time.
type timeCol struct{ t *time.Time }

// Scan satisfies sql.Scanner.
func (c timeCol) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*c.t = time.Time{}
	case int64:
		*c.t = time.UnixMicro(v).UTC()
	default:
		return fmt.Errorf("a time is stored as %T", v)
	}
	return nil
}

// bytesCol reads a body: nil for NULL alone, so that nil keeps meaning "not there" and an empty body is one.
type bytesCol struct{ b *[]byte }

// Scan satisfies sql.Scanner.
func (c bytesCol) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*c.b = nil
	case []byte: // the driver's, and nil for an empty blob
		if *c.b = bytes.Clone(v); v == nil {
			*c.b = []byte{}
		}
	default:
		return fmt.Errorf("a body is stored as %T", v)
	}
	return nil
}

// messageColumns go with messageDest: of table messages as m.
const messageColumns = `m.id, m.inbound, m.peer, m.type, m.control_id, m.received, m.ended, m.size, m.sha256,
	m.disposition, m.reason, coalesce(m.resubmits, 0), m.duplicates`

func messageDest(m *message.Message) []any {
	return []any{&m.ID, &m.Inbound, &m.Peer, &m.Type, &m.ControlID, timeCol{&m.Received}, timeCol{&m.Ended}, &m.Size,
		&m.SHA256, &m.Disposition, &m.Reason, &m.Resubmits, &m.Duplicates}
}

// runColumns go with scanRun: of table runs as r.
const runColumns = `r.id, r.message, r.handler, r.state, r.reason, r.fault_kind, r.fault_type, r.fault_text, r.traceback,
	r.attempts, r.code, r.took_ns, r.ended, r.replayed`

// scanRun reads a run; its sends are deliveries, and its tags the message's, so neither is part of it.
func scanRun(row scanner) (message.Run, error) {
	var r message.Run
	var kind, typ, text, trace sql.NullString
	o := &r.Outcome
	err := row.Scan(&r.ID, &r.Message, &r.Handler, &r.State, &o.Reason, &kind, &typ, &text, &trace,
		&o.Attempts, &o.Code, (*int64)(&o.Took), timeCol{&r.Ended}, timeCol{&r.Replayed})
	o.State = r.State
	if kind.Valid {
		o.Fault = &message.Fault{Kind: kind.String, Type: typ.String, Text: text.String, Traceback: trace.String}
	}
	return r, err
}

// deliveryColumns go with scanDelivery: of deliveries as d, its message as m, its run as r. Its body is another question. more
// is where further columns go.
const deliveryColumns = `d.id, d.message, d.number, r.handler, d.inbound, d.outbound, d.state, d.attempts, d.rejected,
	d.next_try, d.reason, d.receipt, d.ended, d.replayed, m.type, m.control_id`

func scanDelivery(row scanner, more ...any) (message.Delivery, error) {
	var d message.Delivery
	dest := append([]any{&d.ID, &d.Message, &d.Number, &d.Handler, &d.Inbound, &d.Outbound, &d.State, &d.Attempts, &d.Rejected,
		timeCol{&d.NextTry}, &d.Reason, &d.Receipt, timeCol{&d.Ended}, timeCol{&d.Replayed}, &d.Type, &d.Control}, more...)
	err := row.Scan(dest...)
	return d, err
}
