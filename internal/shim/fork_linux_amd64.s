#include "textflag.h"

// func rawFork(trap, a1, a2 uintptr) (pid, errno uintptr)
//
// The child runs on the parent's stack and overwrites what lies below its caller's frame, this function's return address
// with it. So that address waits in a register, which each of the two has for itself.
TEXT ·rawFork(SB),NOSPLIT|NOFRAME,$0-40
	MOVQ	trap+0(FP), AX
	MOVQ	a1+8(FP), DI
	MOVQ	a2+16(FP), SI
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	XORL	R9, R9
	POPQ	R12
	SYSCALL
	PUSHQ	R12
	CMPQ	AX, $-4095
	JCC	failed
	MOVQ	AX, pid+24(FP)
	MOVQ	$0, errno+32(FP)
	RET
failed:
	NEGQ	AX
	MOVQ	$0, pid+24(FP)
	MOVQ	AX, errno+32(FP)
	RET
