package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

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
	between, err := r.between(ctx, q)
	if err != nil {
		return nil, err
	}
	inbounds, err := r.inbounds(ctx, q)
	if err != nil || inbounds != nil && len(inbounds) == 0 {
		return nil, err
	}
	query, args := searchSQL(q, types, inbounds, between)
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
	return q.Type != "" && q.ControlID == "" && q.Tag == "" && (q.Disposition == "" || q.Disposition == message.Processed)
}

// ids are a range of messages: those above the first and below the second. Zero is no bound.
type ids struct{ above, below int64 }

// clockSlack is by how much the wall clock may have jumped between two messages without a search by time missing one.
const clockSlack = 24 * time.Hour

// between bounds a search by time to the ids that can be meant: ids and times ascend together, but for jumps of the clock.
func (r *reader) between(ctx context.Context, q store.Query) (b ids, err error) {
	if !q.Since.IsZero() {
		if b.above, err = r.firstSince(ctx, q.Since.Add(-clockSlack)); err != nil {
			return b, err
		}
		b.above--
	}
	if !q.Until.IsZero() {
		b.below, err = r.firstSince(ctx, q.Until.Add(clockSlack))
	}
	return b, err
}

const (
	sqlIDs = `SELECT coalesce((SELECT min(id) FROM messages), 1), coalesce((SELECT max(id) FROM messages), 0)`
	sqlAt  = `SELECT id, received FROM messages WHERE id >= ? ORDER BY id LIMIT 1`
)

// firstSince finds the first message that was received at a time or later, in a look-up for each doubling of their number; the
// id above all if none was.
func (r *reader) firstSince(ctx context.Context, t time.Time) (int64, error) {
	var low, high int64
	if err := r.db.QueryRowContext(ctx, sqlIDs).Scan(&low, &high); err != nil {
		return 0, err
	}
	for high++; low < high; {
		middle := low + (high-low)/2
		var id, received int64
		err := r.db.QueryRowContext(ctx, sqlAt, middle).Scan(&id, &received)
		switch {
		case errors.Is(err, sql.ErrNoRows), err == nil && received >= micros(t): // none: it has been purged since
			high = middle
		case err != nil:
			return 0, err
		default:
			low = id + 1
		}
	}
	return low, nil
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
	return r.few(ctx, maxTypes, sqlTypes, prefix, prefixEnd(prefix))
}

// maxInbounds bounds the branches of a query for a disposition.
const maxInbounds = 400

// Skips from one inbound to the next in the index, as sqlTypes does.
var sqlInbounds = map[bool]string{false: inboundsIn("messages_open", "NULL"), true: inboundsIn("messages_by_inbound", "NOT NULL")}

func inboundsIn(index, ended string) string {
	least := "SELECT min(inbound) FROM messages INDEXED BY " + index + " WHERE ended IS " + ended
	return "WITH RECURSIVE i (name) AS (" + least + " UNION ALL SELECT (" + least + ` AND inbound > i.name) FROM i WHERE i.name IS NOT NULL)
	SELECT name FROM i WHERE name IS NOT NULL LIMIT ?`
}

// inbounds returns those that the messages of a query may have come by; nil if any may be, or more than maxInbounds.
func (r *reader) inbounds(ctx context.Context, q store.Query) ([]string, error) {
	switch {
	case q.Inbound != "":
		return []string{q.Inbound}, nil
	case q.Disposition != "":
		return r.few(ctx, maxInbounds, sqlInbounds[q.Disposition.Final()])
	}
	return nil, nil
}

// few returns what a query for names finds, whose last parameter is a limit; nil if there are more than most.
func (r *reader) few(ctx context.Context, most int, query string, args ...any) ([]string, error) {
	list := []string{}
	rows, err := r.db.QueryContext(ctx, query, append(args, most+1)...)
	err = scanAll(rows, err, func(row scanner) error {
		var s string
		err := row.Scan(&s)
		list = append(list, s)
		return err
	})
	if len(list) > most {
		list = nil
	}
	return list, err
}

// searchSQL builds the query. The rows of one (inbound, disposition) or of one type stand in their index by id, so a walk that
// needs several of them is a merge of ordered branches, which reads hardly more rows than it returns and never sorts: SQLite
// does so for "UNION ALL ... ORDER BY" by itself. Indexes are named, since without statistics the planner may prefer another
// one, however much it then walks. inbounds are those that there may be; nil where there are too many to ask one by one.
func searchSQL(q store.Query, types, inbounds []string, between ids) (string, []any) {
	b := branches{between: between}
	switch {
	case q.Tag != "":
		b.add("tags", q, "")
	case q.ControlID != "":
		b.add("INDEXED BY messages_by_control_id", q, "")
	case types != nil:
		for _, t := range types {
			b.add("INDEXED BY messages_by_type", q, t)
		}
	case inbounds != nil:
		b.standing(q, inbounds)
	default:
		b.add("NOT INDEXED", q, "") // by id, from the end
	}
	return b.sql(q.Limit)
}

// branches are SELECTs over messages whose union is the answer.
type branches struct {
	between ids
	selects []string
	args    []any
}

// standing adds the messages that match q, found by where they came from and how they stand.
func (b *branches) standing(q store.Query, inbounds []string) {
	all := []message.Disposition{q.Disposition}
	if q.Disposition == "" {
		all = message.Dispositions()
	}
	for _, in := range inbounds {
		for _, d := range all {
			q.Inbound, q.Disposition = in, d
			if d.Final() {
				b.add("INDEXED BY messages_by_inbound", q, "", "m.ended IS NOT NULL")
			} else {
				b.add("INDEXED BY messages_open", q, "", "m.ended IS NULL")
			}
		}
	}
}

// add adds the messages that match q, found by an index, or by their tags; exactType, if there is one, stands in for q's prefix
// of types, and conds are what else is true of them.
func (b *branches) add(index string, q store.Query, exactType string, conds ...string) {
	conds = append(conds, "1")
	where := func(cond string, args ...any) {
		conds = append(conds, cond)
		b.args = append(b.args, args...)
	}
	from := "messages m " + index
	if index == "tags" {
		from = "tags t INDEXED BY tags_by_value CROSS JOIN messages m ON m.id = t.message"
		if q.TagPrefix {
			where("t.name = ? AND t.value >= ? AND t.value < ?", q.Tag, q.TagValue, prefixEnd(q.TagValue))
		} else {
			where("t.name = ? AND t.value = ?", q.Tag, q.TagValue)
		}
	}
	if q.Before > 0 {
		where("m.id < ?", q.Before)
	}
	if b.between.above > 0 {
		where("m.id > ?", b.between.above)
	}
	if b.between.below > 0 {
		where("m.id < ?", b.between.below)
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
	if !q.Until.IsZero() {
		where("m.received < ?", micros(q.Until))
	}
	b.selects = append(b.selects, "SELECT "+messageColumns+" FROM "+from+" WHERE "+strings.Join(conds, " AND "))
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
