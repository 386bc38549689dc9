package victim

import "os"

// Orphan executes the program at path with the arguments, argv[0] among them, in a session of its own (on Windows: detached from
// its console and in a process group of its own), with the files as its first descriptors, nil being the null device, and
// does not wait for it. It is the step of a daemon's double fork, for programs that show what a tree holds; that
// program bounds its own life. On Windows only the first three files are handed over.
func Orphan(path string, argv []string, files ...*os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	attr := &os.ProcAttr{Env: os.Environ(), Sys: orphaned()}
	for _, f := range files {
		if f == nil {
			f = null
		}
		attr.Files = append(attr.Files, f)
	}
	p, err := os.StartProcess(path, argv, attr)
	if err != nil {
		return err
	}
	return p.Release()
}
