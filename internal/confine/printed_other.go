//go:build !unix

package confine

import (
	"os"
	"sync"
)

// ReadPrinted reads from the pipe that a worker prints into. Here a pipe cannot be read without waiting, so that read may
// come a moment after the bytes have left the pipe.
func ReadPrinted(f *os.File, b []byte, lock sync.Locker, read func(n int)) (n int, err error) {
	n, err = f.Read(b)
	lock.Lock()
	defer lock.Unlock()
	read(n)
	return n, err
}
