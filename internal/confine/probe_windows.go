package confine

import (
	"fmt"

	"golang.org/x/sys/windows"
)

func probes() []probe {
	return []probe{{name: "job-nesting", child: nestJobs}}
}

// nestJobs makes this process a member of one job object, and then of another inside of that. The handles are left to the
// process's end, which is near.
func nestJobs() (string, error) {
	for _, which := range []string{"outer", "inner"} {
		job, err := windows.CreateJobObject(nil, nil)
		if err != nil {
			return "", fmt.Errorf("make the %s job object: %w", which, err)
		}
		if err := windows.AssignProcessToJobObject(job, windows.CurrentProcess()); err != nil {
			return "", fmt.Errorf("enter the %s job object: %w", which, err)
		}
	}
	return "a job object was entered inside of another", nil
}
