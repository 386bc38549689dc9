package sqlite

import "testing"

// A search reads of the deliveries those of its message. Red with + before d.message.
func TestContainsPlan(t *testing.T) {
	s := openAt(t, newPath(t), Options{})
	wantNoScan(t, "other bodies", explain(t, s, sqlOtherBodies, 1), true)
	wantNoScan(t, "printed", explain(t, s, sqlPrinted, 1), true)
}
