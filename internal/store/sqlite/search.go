package sqlite

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// Messages lists messages newest first, without bodies; see store.Reader. A query for a control id looks at every id
// that starts so; any other stops at its limit.
func (r *reader) Messages(ctx context.Context, q store.Query) ([]message.Message, error) {
	list, err := r.search(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("list messages: %w", err)
	}
	return list, nil
}

func (r *reader) search(ctx context.Context, q store.Query) ([]message.Message, error) {
	if err := r.gate.enter(); err != nil {
		return nil, err
	}
	defer r.gate.leave()
	var types []string
	if byType(q) {
		var err error
		if types, err = r.types(ctx, q.Type); err != nil {
			return nil, err
		}
	}
	if types != nil && len(types) == 0 {
		return nil, nil
	}
	query, args := searchSQL(q, types)
	var list []message.Message
	rows, err := r.db.QueryContext(ctx, query, args...)
	err = scanAll(rows, err, func(row scanner) error {
		var m message.Message
		err := row.Scan(messageDest(&m)...)
		list = append(list, m)
		return err
	})
	return list, err
}

// byType says whether the index of types is the one to walk. Nearly all messages end PROCESSED, so any other
// disposition picks fewer than a type does.
func byType(q store.Query) bool {
	return q.Type != "" && q.ControlID == "" && (q.Disposition == "" || q.Disposition == message.Processed)
}

// maxTypes bounds the branches of a query for a prefix of types; SQLite's own limit is 500.
const maxTypes = 50

// Skips from one type to the next in the index.
const sqlTypes = `WITH RECURSIVE t (type) AS (
		SELECT min(type) FROM messages WHERE type >= ?1 AND type < ?2
		UNION ALL
		SELECT (SELECT min(type) FROM messages WHERE type > t.type AND type < ?2) FROM t WHERE t.type IS NOT NULL
	)
	SELECT type FROM t WHERE type IS NOT NULL LIMIT ?3`

// types returns the message types with a prefix; nil if there are more than maxTypes.
func (r *reader) types(ctx context.Context, prefix string) ([]string, error) {
	list := []string{}
	rows, err := r.db.QueryContext(ctx, sqlTypes, prefix, prefixEnd(prefix), maxTypes+1)
	err = scanAll(rows, err, func(row scanner) error {
		var s string
		err := row.Scan(&s)
		list = append(list, s)
		return err
	})
	if len(list) > maxTypes {
		list = nil
	}
	return list, err
}

// searchSQL builds the query. The rows of one (inbound, disposition), of one disposition or of one type stand in their
// index by id, so a walk that needs several of them is a merge of ordered branches, which reads hardly more rows than it
// returns and never sorts: SQLite does so for "UNION ALL ... ORDER BY" by itself. Indexes are named, since without
// statistics the planner may prefer another one, however much it then walks.
func searchSQL(q store.Query, types []string) (string, []any) {
	var b branches
	switch {
	case q.ControlID != "":
		b.add("INDEXED BY messages_by_control_id", q, "")
	case types != nil:
		for _, t := range types {
			b.add("INDEXED BY messages_by_type", q, t)
		}
	case q.Inbound != "" && q.Disposition == "":
		for _, d := range message.Dispositions() {
			q.Disposition = d
			b.add("INDEXED BY messages_by_inbound", q, "")
		}
	case q.Inbound != "":
		b.add("INDEXED BY messages_by_inbound", q, "")
	case q.Disposition != "":
		b.add("INDEXED BY messages_by_disposition", q, "")
	default:
		b.add("NOT INDEXED", q, "") // by id, from the end
	}
	return b.sql(q.Limit)
}

// branches are SELECTs over messages whose union is the answer.
type branches struct {
	selects []string
	args    []any
}

// add adds the messages that match q; exactType, if there is one, stands in for q's prefix of types.
func (b *branches) add(index string, q store.Query, exactType string) {
	conds := []string{"1"}
	where := func(cond string, args ...any) {
		conds = append(conds, cond)
		b.args = append(b.args, args...)
	}
	if q.Before > 0 {
		where("m.id < ?", q.Before)
	}
	if q.Inbound != "" {
		where("m.inbound = ?", q.Inbound)
	}
	if q.Disposition != "" {
		where("m.disposition = ?", string(q.Disposition))
	}
	if exactType != "" {
		where("m.type = ?", exactType)
	} else if q.Type != "" {
		where("m.type >= ? AND m.type < ?", q.Type, prefixEnd(q.Type))
	}
	if q.ControlID != "" {
		where("m.control_id >= ? AND m.control_id < ?", q.ControlID, prefixEnd(q.ControlID))
	}
	if !q.Since.IsZero() {
		where("m.received >= ?", micros(q.Since))
	}
	b.selects = append(b.selects, "SELECT "+messageColumns+" FROM messages m "+index+" WHERE "+strings.Join(conds, " AND "))
}

func (b *branches) sql(limit int) (string, []any) {
	query := strings.Join(b.selects, " UNION ALL ") + " ORDER BY 1 DESC LIMIT ?"
	return query, append(b.args, cmp.Or(max(limit, 0), 50))
}

// prefixEnd returns the least value above every string with the prefix, as bytes compare, which text columns do. Header
// fields need not be UTF-8, so any byte may stand in them.
func prefixEnd(prefix string) any {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			return prefix[:i] + string([]byte{prefix[i] + 1})
		}
	}
	return []byte{} // a blob is above every text (sqlite.org/datatype3.html, section 4.1)
}
