package tree

// ladder lists the rungs of Linux, best first. Each is documented where it starts.
func ladder() []rung {
	return []rung{pidNamespace(), pidNamespaceUser(), cgroupLeaf(), subreaper(), processGroup()}
}
