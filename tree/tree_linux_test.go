package tree

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"coppice.dev/coppice/internal/shim"
	"golang.org/x/sys/unix"
)

func TestX(t *testing.T) {
	for _, r := range Rungs() {
		t.Run(r, func(t *testing.T) {
			pr, pw, _ := os.Pipe()
			start := time.Now()
			tr, err := Start(context.Background(), Spec{Path: "/bin/sh", Args: []string{"sh", "-c", `(setsid sh -c 'sleep 1000 & sleep 1001' & ) ; echo hi; sleep 1002`}, Env: []string{"PATH=/usr/bin:/bin"}, Stdout: pw, Rung: r, NewSession: true, NoNewPrivileges: true, DropCapabilities: true})
			t.Log(time.Since(start))
			if err != nil {
				t.Skip(err)
			}
			pw.Close()
			b := make([]byte, 10)
			pr.Read(b)
			time.Sleep(50 * time.Millisecond)
			m, err := tr.Members()
			t.Log(m, err)
			rep, err := tr.Kill(context.Background(), "test")
			t.Logf("%+v %v %v", rep, err, tr.Status())
		})
	}

	_ = filepath.Join
	_ = strings.Join
	_ = syscall.SIGKILL
	_ = unix.AF_UNIX
	fmt.Println()
}

func TestMain(m *testing.M) {
	shim.Hook()
	os.Exit(m.Run())
}
