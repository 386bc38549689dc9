#include "textflag.h"

// func rawFork(trap, a1, a2 uintptr) (pid, errno uintptr)
//
// The child runs on the parent's stack and overwrites what lies below its caller's frame, but not this function's return
// address, which is in a register that each of the two has for itself.
TEXT ·rawFork(SB),NOSPLIT|NOFRAME,$0-40
	MOVD	trap+0(FP), R8
	MOVD	a1+8(FP), R0
	MOVD	a2+16(FP), R1
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$0, R4
	SVC
	CMN	$4095, R0
	BCC	ok
	NEG	R0, R0
	MOVD	$0, R1
	MOVD	R1, pid+24(FP)
	MOVD	R0, errno+32(FP)
	RET
ok:
	MOVD	R0, pid+24(FP)
	MOVD	ZR, errno+32(FP)
	RET
