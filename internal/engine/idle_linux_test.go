package engine

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// TestIdle: an engine with three inbounds, four handlers that have workers and four outbounds, to which nothing comes, uses less than a
// hundredth of a core. CPU time is counted, which other work on the host hardly changes. Red with lookAgain of a millisecond.
func TestIdle(t *testing.T) {
	w := newWorld(t, "COPPICE_KILLS", 1)
	w.place(t, t.TempDir())
	child := startChild(t, w.dir)
	for name, addr := range child.addrs {
		exchange(t, dial(t, addr), numberedMessage(w.sent[name]))
	}
	const window = 5 * time.Second
	time.Sleep(window) // its workers have started, and what it does at a start is over
	before := cpuTicks(t, child.cmd.Process.Pid)
	time.Sleep(2 * window) // how much it uses in a time is the point
	used := time.Duration(cpuTicks(t, child.cmd.Process.Pid)-before) * 10 * time.Millisecond
	t.Logf("%v of CPU time in %v", used, 2*window)
	if used >= 2*window/100 {
		t.Errorf("an idle engine used %v of CPU time in %v", used, 2*window)
	}
	child.kill()
}

// cpuTicks is the CPU time of a process in hundredths of a second, which is what Linux counts in for everybody (proc_pid_stat(5),
// utime and stime).
func cpuTicks(t *testing.T, pid int) (sum int64) {
	t.Helper()
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}
