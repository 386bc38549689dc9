package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"runtime"
	"strings"
)

// pragma is a setting of a connection, with its value as SQLite reads it back.
type pragma struct{ name, value string }

// connPragmas are the settings of every connection. temp_store keeps what a sort spills in memory: names and ids must
// not land in files of a shared temporary folder.
func connPragmas() []pragma {
	return []pragma{
		{"busy_timeout", "5000"},
		{"foreign_keys", "1"},
		{"temp_store", "2"},
	}
}

// writerPragmas are the settings of the writing connection, journal_mode apart, which writes to the file and so has to
// wait until the file is known to be ours. journal_size_limit cuts the log down after it was grown by a long read.
// On macOS fsync does not reach the medium, only F_FULLFSYNC does (fsync(2) there).
func writerPragmas() []pragma {
	p := append(connPragmas(),
		pragma{"synchronous", "2"},
		pragma{"journal_size_limit", "67108864"},
		pragma{"cache_size", "-16384"},
	)
	if runtime.GOOS == "darwin" {
		p = append(p, pragma{"fullfsync", "1"}, pragma{"checkpoint_fullfsync", "1"})
	}
	return p
}

// readerPragmas are the settings of the reading connections.
func readerPragmas() []pragma { return append(connPragmas(), pragma{"query_only", "1"}) }

// wantedPragmas are what the writer's connection must read back: SQLite takes an unknown or impossible setting without
// an error (sqlite.org/pragma.html, section 1).
func wantedPragmas() []pragma {
	return append(writerPragmas(), pragma{"journal_mode", "wal"}, pragma{"auto_vacuum", "2"})
}

// readBack compares the connection's settings with what is wanted.
func readBack(ctx context.Context, c *sql.Conn, want []pragma) error {
	for _, p := range want {
		var got string
		if err := c.QueryRowContext(ctx, "PRAGMA "+p.name).Scan(&got); err != nil {
			return fmt.Errorf("read back %s: %w", p.name, err)
		}
		if !strings.EqualFold(got, p.value) {
			return fmt.Errorf("%w: %s is %s, not %s", ErrPragma, p.name, got, p.value)
		}
	}
	return nil
}
