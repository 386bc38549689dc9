#include "textflag.h"

// func prlimit(files *[2]uint64) uintptr
TEXT ·prlimit(SB), NOSPLIT, $0-16
	MOVD	$0, R0 // oneself
	MOVD	$7, R1 // RLIMIT_NOFILE
	MOVD	$0, R2 // none is set
	MOVD	files+0(FP), R3
	MOVD	$261, R8 // SYS_PRLIMIT64
	SVC
	MOVD	R0, ret+8(FP)
	RET
