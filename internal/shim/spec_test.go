package shim

import (
	"reflect"
	"testing"
)

func TestSpecSurvivesTheSocket(t *testing.T) {
	want := Spec{Mode: AsSubreaper, Path: "/p", Args: []string{"a", "", "\x00ä"}, Env: []string{"K=V"}, Dir: "/d", Files: 5, Carved: []string{"/sys/fs/cgroup"},
		NewSession: true, DropCapabilities: true, Limits: []Limit{{7, 64}, {4, 0}}}
	b, ok := want.Encode()
	if !ok || get64(b) != uint64(len(b)-8) {
		t.Fatal("length")
	}
	got, ok := decodeSpec(b[8:])
	if !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	for n := range len(b) - 8 {
		if _, ok := decodeSpec(b[8 : 8+n]); ok {
			t.Errorf("accepted its first %d bytes", n)
		}
	}
	if _, ok := decodeSpec(append(b[8:], 0)); ok {
		t.Error("accepted a byte more")
	}
	e := Event{Kind: Exited, A: 1, B: 1 << 63, C: 3, D: 4}
	if got := ParseEvent(e.Append(nil)); got != e || len(e.Append(nil)) != EventSize {
		t.Errorf("event %+v", got)
	}
}
