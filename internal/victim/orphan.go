package victim

import "os"

func orphan(argv []string, hold *os.File, attr *os.ProcAttr) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	attr.Env = os.Environ()
	attr.Files = []*os.File{null, null, hold}
	p, err := os.StartProcess(exe, argv, attr)
	if err != nil {
		return err
	}
	return p.Release()
}
