package tree

// ladder lists the rungs of Windows: the job object, given at birth or, where that cannot be, before the first instruction.
func ladder() []rung { return []rung{jobObject(), lateJobObject()} }
