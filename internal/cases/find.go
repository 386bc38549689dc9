package cases

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"coppice.dev/coppice/internal/hl7"
)

// Case is one message to try.
type Case struct {
	Name string // its file, and #N for one of several in it
	Body []byte
	Want string // the folder of what is expected of it, which need not be there
}

// WantDir is the folder of what is expected of a file with one message.
func WantDir(file string) string { return file + wantEnding }

// Find lists the files that hold cases, in order of names: a path that is a file, whatever it is called; in a folder and all
// below it those that end in .hl7, and those that have an expectation beside them. Hidden names are left out. It adds up their
// sizes.
func Find(paths []string) (files []string, total int64, err error) {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, 0, err
		}
		if !info.IsDir() {
			files, total = append(files, path), total+info.Size()
			continue
		}
		err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case p == path:
				return nil
			case d.IsDir() && (strings.HasPrefix(d.Name(), ".") || strings.HasSuffix(d.Name(), wantEnding)):
				return fs.SkipDir
			case strings.HasPrefix(d.Name(), "."):
				return nil
			}
			info, err := os.Stat(p)
			if err != nil || !info.Mode().IsRegular() || !strings.HasSuffix(p, Ending) && !there(WantDir(p)) {
				return nil // a link to nowhere, among others
			}
			files, total = append(files, p), total+info.Size()
			return nil
		})
		if err != nil {
			return nil, 0, err
		}
	}
	if len(files) == 0 {
		return nil, 0, fmt.Errorf("no cases in %s: a folder's are the files that end in %s", strings.Join(paths, ", "), Ending)
	}
	return files, total, nil
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// In returns the cases of one file. The file is one message as it stands if it holds no more than one, if it is not HL7, and if
// an expectation of it as a whole lies beside it; else each of its messages is a case, as `coppice send` takes them apart.
func In(file string) iter.Seq2[Case, error] {
	return func(yield func(Case, error) bool) {
		body, err := capped(file, MaxBody)
		if err != nil {
			yield(Case{}, err)
			return
		}
		whole := Case{file, body, WantDir(file)}
		if there(filepath.Join(whole.Want, outcomeFile)) || !several(body) {
			yield(whole, nil)
			return
		}
		n := 0
		for body, err := range hl7.Split(bytes.NewReader(whole.Body), MaxBody) {
			n++
			if !yield(whole.Part(n, body), err) || err != nil {
				return
			}
		}
	}
}

// Part is the case of message n, from 1, of several in a case's file.
func (c Case) Part(n int, body []byte) Case {
	number := strconv.Itoa(n)
	return Case{c.Name + "#" + number, body, filepath.Join(c.Want, number)}
}

// several says whether a text holds more than one message.
func several(text []byte) bool {
	n := 0
	for _, err := range hl7.Split(bytes.NewReader(text), MaxBody) {
		if n++; err != nil || n > 1 {
			return err == nil || !errors.Is(err, hl7.ErrNoMessage)
		}
	}
	return false
}
