package victim

import "os"

// Orphan executes the program at path with the arguments, argv[0] among them, in a session of its own (on Windows: detached from
// its console and in a process group of its own), with the files as its first descriptors, nil being the null device, and
// does not wait for it: the process is the caller's to wait for or to release. It is the step of a daemon's double fork, for
// programs that show what a tree holds; that program bounds its own life. On Windows only the first three files are
// handed over.
func Orphan(path string, argv []string, files ...*os.File) (*os.Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	attr := &os.ProcAttr{Env: os.Environ(), Sys: orphaned()}
	for _, f := range files {
		if f == nil {
			f = null
		}
		attr.Files = append(attr.Files, f)
	}
	return os.StartProcess(path, argv, attr)
}
