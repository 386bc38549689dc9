#include "textflag.h"

// func prlimit(files *[2]uint64) uintptr
TEXT ·prlimit(SB), NOSPLIT, $0-16
	MOVQ	$302, AX // SYS_PRLIMIT64
	MOVQ	$0, DI   // oneself
	MOVQ	$7, SI   // RLIMIT_NOFILE
	MOVQ	$0, DX   // none is set
	MOVQ	files+0(FP), R10
	SYSCALL
	MOVQ	AX, ret+8(FP)
	RET
