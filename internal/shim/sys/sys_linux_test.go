package sys

import (
	"go/constant"
	"go/importer"
	"go/token"
	"go/types"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestAsUnix: each constant that package unix has too has the same value there, and each structure the same form.
func TestAsUnix(t *testing.T) {
	load := func(path string) *types.Scope {
		p, err := importer.ForCompiler(token.NewFileSet(), "source", nil).Import(path)
		if err != nil {
			t.Fatal(err)
		}
		return p.Scope()
	}
	own, theirs := load("coppice.dev/coppice/internal/shim/sys"), load("golang.org/x/sys/unix")
	others := map[string]string{"CAPABILITY_VERSION_3": "LINUX_CAPABILITY_VERSION_3"}
	compared := 0
	for _, name := range own.Names() {
		c, ok := own.Lookup(name).(*types.Const)
		if !ok || !c.Exported() {
			continue
		}
		if other, ok := others[name]; ok {
			name = other
		}
		same, ok := theirs.Lookup(name).(*types.Const)
		if !ok {
			t.Errorf("package unix has no %s", name)
		} else if !constant.Compare(c.Val(), token.EQL, same.Val()) {
			t.Errorf("%s is %s, in package unix %s", name, c.Val(), same.Val())
		}
		compared++
	}
	if compared < 50 {
		t.Errorf("%d constants were compared", compared)
	}
	for name, sizes := range map[string][2]uintptr{
		"PollFd":                  {unsafe.Sizeof(PollFd{}), unsafe.Sizeof(unix.PollFd{})},
		"CapHeader":               {unsafe.Sizeof(CapHeader{}), unsafe.Sizeof(unix.CapUserHeader{})},
		"CapData":                 {unsafe.Sizeof(CapData{}), unsafe.Sizeof(unix.CapUserData{})},
		"Scoped":                  {unsafe.Offsetof(LandlockRulesetAttr{}.Scoped), unsafe.Offsetof(unix.LandlockRulesetAttr{}.Scoped)},
		"LandlockPathBeneathAttr": {unsafe.Sizeof(LandlockPathBeneathAttr{}), unsafe.Sizeof(unix.LandlockPathBeneathAttr{})},
	} {
		if sizes[0] != sizes[1] {
			t.Errorf("%s: %d, in package unix %d", name, sizes[0], sizes[1])
		}
	}
}
