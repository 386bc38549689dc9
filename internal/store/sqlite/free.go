package sqlite

// FreeSpace returns how many bytes this user can still write to the disk that has the file; errors.ErrUnsupported where the
// system is not asked.
func FreeSpace(path string) (int64, error) { return freeSpace(path) }

// inBytes is blocks times their size, which some systems count as signed: below zero is what is kept for root.
func inBytes(blocks, size int64) int64 { return max(blocks, 0) * size }
