/* Actions at the start of a program. Some of them run before main. This file is separate from
 * daemon.c, so that the actions are linked only into programs that call daemon_begin. */
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/daemon/daemon.h"

#define BIT(sig) (UINT64_C(1) << ((sig)-1))

/* libfabric loads libinfinipath. The constructor of libinfinipath makes SIGTERM and SIGINT call
 * exit(1). Then the constructor runs for a tenth of a second. A stop signal during this tenth of a
 * second would look like a failure. So block the signals in .preinit_array, because only functions
 * there run before the constructors of libraries. When the functions in .preinit_array run, nothing
 * is initialized yet, not even a sanitizer. So use the system call directly. */
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
	/* Undo the handlers of libinfinipath. After a crash the handlers would print a backtrace
	 * and exit with 1. Then the kernel would write no core dump, and the service manager could
	 * not detect the crash. */
	static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGABRT};

	for (size_t i = 0; i < sizeof(crashes) / sizeof(crashes[0]); i++)
		signal(crashes[i], SIG_DFL);
#endif
}
