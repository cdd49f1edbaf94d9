/* Actions that must happen before main, apart from daemon.c so that only daemons have them. */
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/daemon/daemon.h"

#define BIT(sig) (UINT64_C(1) << ((sig)-1))

/* libfabric loads libinfinipath, whose constructor handles SIGTERM and SIGINT by exit(1) and then
 * takes a tenth of a second. A stop in that time looked like a failure. Only functions in
 * .preinit_array run before the constructors of libraries. Nothing is initialized then, not even a
 * sanitizer, hence the bare system call. */
__attribute__((no_sanitize("address", "thread", "undefined"))) static void block_signals(void)
{
	static const uint64_t mask = BIT(SIGTERM) | BIT(SIGINT) | BIT(SIGHUP);

	syscall(SYS_rt_sigprocmask, SIG_BLOCK, &mask, NULL, sizeof(mask));
}
__attribute__((section(".preinit_array"), used)) static void (*const preinit)(void) = block_signals;

void daemon_begin(void)
{
	signal(SIGPIPE, SIG_IGN);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	/* On a crash, libinfinipath would print a backtrace and exit with 1. There would be no
	 * core, and a restart policy would mistake the crash for a failure. */
	static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGABRT};

	for (size_t i = 0; i < sizeof(crashes) / sizeof(crashes[0]); i++)
		signal(crashes[i], SIG_DFL);
#endif
}
