package bodydiff

import "bytes"

// hunk is a pair of runs of lines: the same one line, or what was replaced by what.
type hunk struct {
	same           bool
	a0, a1, b0, b1 int
}

// cells bounds the table of align. Two bodies beyond it are shown as one replaced by the other, between what they begin and
// end with alike.
const cells = 4 << 20

// align pairs the lines that two bodies have in common, as many as can be, in order.
func align(a, b []line) (out []hunk) {
	same := func(i, j int) bool { return bytes.Equal(a[i].text, b[j].text) }
	pair := func(i, j int) { out = append(out, hunk{true, i, i + 1, j, j + 1}) }
	head := 0
	for head < len(a) && head < len(b) && same(head, head) {
		pair(head, head)
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && same(len(a)-1-tail, len(b)-1-tail) {
		tail++
	}
	i, j := head, head
	for _, p := range common(len(a)-head-tail, len(b)-head-tail, func(i, j int) bool { return same(head+i, head+j) }) {
		out = replaced(out, i, head+p[0], j, head+p[1])
		pair(head+p[0], head+p[1])
		i, j = head+p[0]+1, head+p[1]+1
	}
	out = replaced(out, i, len(a)-tail, j, len(b)-tail)
	for k := tail; k > 0; k-- {
		pair(len(a)-k, len(b)-k)
	}
	return out
}

func replaced(out []hunk, a0, a1, b0, b1 int) []hunk {
	if a0 == a1 && b0 == b1 {
		return out
	}
	return append(out, hunk{a0: a0, a1: a1, b0: b0, b1: b1})
}

// common is a longest common subsequence, as pairs of places.
func common(n, m int, same func(i, j int) bool) (out [][2]int) {
	if n == 0 || m == 0 || n > cells/m {
		return nil
	}
	longest := make([]int32, (n+1)*(m+1)) // of what is left from (i, j) on
	at := func(i, j int) *int32 { return &longest[i*(m+1)+j] }
	for i := n - 1; i >= 0; i-- {
		for j := m - 1; j >= 0; j-- {
			if same(i, j) {
				*at(i, j) = *at(i+1, j+1) + 1
			} else {
				*at(i, j) = max(*at(i+1, j), *at(i, j+1))
			}
		}
	}
	for i, j := 0, 0; i < n && j < m; {
		switch {
		case same(i, j):
			out = append(out, [2]int{i, j})
			i, j = i+1, j+1
		case *at(i+1, j) >= *at(i, j+1):
			i++
		default:
			j++
		}
	}
	return out
}
