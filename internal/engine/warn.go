package engine

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"coppice.dev/coppice/internal/config"
)

// linkedFolders warns of an inbound that reads, by way of a link, what an outbound writes. Folders that are the same as they are
// written are package config's to refuse.
func linkedFolders(cfg *config.Config) (out []*config.Error) {
	for _, in := range cfg.Inbounds {
		for _, o := range cfg.Outbounds {
			if in.File == nil || o.File == nil {
				continue
			}
			reads, err := os.Stat(in.File.Dir)
			writes, missing := os.Stat(o.File.Dir)
			if err == nil && missing == nil && os.SameFile(reads, writes) {
				out = append(out, cfg.Errorf(inboundPlace(in), "give one of them another folder",
					"inbound %s reads the folder that outbound %s writes to, by way of a link: a loop", in.Name, o.Name))
			}
		}
	}
	return out
}

// ownHost says whether a name or an address is this machine's. It asks no name server.
func ownHost(host string) bool {
	if name, err := os.Hostname(); err == nil && strings.EqualFold(host, name) {
		return true
	}
	ip := net.ParseIP(host)
	addrs, err := net.InterfaceAddrs()
	return err == nil && ip != nil && slices.ContainsFunc(addrs, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip)
	})
}

// Rights of others: everybody who is neither the owner nor of the group. What a group may do is the site's to say.
const (
	othersRead  fs.FileMode = 0o004
	othersWrite fs.FileMode = 0o002
	othersEnter fs.FileMode = 0o001
)

// listed is how many files one warning names.
const listed = 5

// rights collects what others may write of what an engine runs. Windows has no such bits.
type rights struct {
	cfg   *config.Config
	loose []string
}

// look sees each folder and file that is code. In a folder with the sticky bit others may add files, and change none.
func (r *rights) look(rel string, info fs.FileInfo) {
	if runtime.GOOS != "windows" && info.Mode().Perm()&othersWrite != 0 && (!info.IsDir() || info.Mode()&fs.ModeSticky == 0) {
		r.loose = append(r.loose, filepath.Join(filepath.Dir(r.cfg.File), rel))
	}
}

// code warns of what was looked at.
func (r *rights) code() []*config.Error {
	if len(r.loose) == 0 {
		return nil
	}
	what := strings.Join(r.loose[:min(len(r.loose), listed)], ", ")
	if more := len(r.loose) - listed; more > 0 {
		what += fmt.Sprintf(" and %d more", more)
	}
	return []*config.Error{{File: r.cfg.File, Hint: "take that right from them: chmod o-w",
		Msg: "every user of this host may write what the engine runs: " + what}}
}

// programs warns of workers' programs outside of the folder.
func (r *rights) programs(w *workers, code Snapshot) (out []*config.Error) {
	seen := map[string]bool{}
	for _, p := range w.pools {
		program := p.spec.Command[0]
		rel, err := filepath.Rel(code.Dir, program)
		if seen[program] || err == nil && filepath.IsLocal(rel) {
			continue
		}
		seen[program] = true
		if info, err := os.Stat(program); err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&othersWrite != 0 {
			out = append(out, r.cfg.Errorf(p.place, "take that right from them: chmod o-w", "every user of this host may write the program of %s", p.spec.Name))
		}
	}
	return out
}

// store warns of a store that others can look into: it has every message. A folder that holds the configuration as well is not the
// store's own.
func (r *rights) store() (out []*config.Error) {
	if runtime.GOOS == "windows" {
		return nil
	}
	place := []string{"store", "path"}
	dir := filepath.Dir(r.cfg.Store.Path)
	if info, err := os.Stat(dir); err == nil && dir != r.cfg.Dir && info.Mode().Perm()&(othersRead|othersWrite|othersEnter) != 0 {
		out = append(out, r.cfg.Errorf(place, "chmod 700 it", "every user of this host may look into the store's folder"))
	}
	for _, end := range []string{"", "-wal", "-shm"} {
		if info, err := os.Stat(r.cfg.Store.Path + end); err == nil && info.Mode().Perm()&(othersRead|othersWrite) != 0 {
			return append(out, r.cfg.Errorf(place, "chmod 600 it, and its -wal and -shm", "every user of this host may read the store's file"))
		}
	}
	return out
}
