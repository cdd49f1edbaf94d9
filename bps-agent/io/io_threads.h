#ifndef BPS_AGENT_IO_IO_THREADS_H
#define BPS_AGENT_IO_IO_THREADS_H
/* The agent's transport with I/O threads. The core sees one struct xport. Behind it, each I/O
 * thread has a transport of its own (common/datapath/datapath.h) and owns the connections that it
 * was given: their system calls, copies, CRCs and local sums.
 *
 * I/O threads work only under load. At rest they are PARKED: the data thread calls their transports
 * itself, so a small message passes no second thread. When the data thread is busy, they all RUN,
 * and exchange records with the data thread through two queues for each thread (io_queue.h).
 *
 *   PARKED --the data thread had work for 70 % of 2 ms (io_load.c)-> RUNNING
 *   RUNNING --all threads together had work for < 50 % of 100 ms--> PARKED
 *
 * Each transport has one owner at any time: the data thread while its I/O thread is parked, else
 * the I/O thread (A12). Segments are added and removed by the data thread, which parks a running
 * thread for the duration of the call.
 *
 * Thread: the data thread, unless a function says otherwise. */
#include <stdint.h>

#include "common/base/error.h"
#include "common/datapath/cards.h"
#include "common/transport/xport.h"

struct shm_config;

#define IO_THREADS_MAX 16

struct io_config {
	unsigned n_threads; /* number of I/O threads, at least one for each card */
	/* Network cards; the caller keeps them until the transport is freed */
	const struct cards *cards;
	uint32_t spin_us;                   /* as for dataloop_new */
	const struct shm_config *same_host; /* as for datapath_new */
	/* A card whose connections have been silent for this time may have lost its path. */
	uint64_t silent_ns;
};

struct io_figures {
	unsigned n_threads;
	bool is_running;
	uint64_t n_runs;                  /* how often the threads have begun to run */
	uint64_t busy_ns[IO_THREADS_MAX]; /* dataloop_busy_ns of each thread */
};

/* Make the transport and start the threads. Errors: a negative code; err gets the text. */
int io_xport_new(const struct io_config *cfg, const struct xport_events *ev, void *ctx,
	struct xport **ret, struct err_text *err);
/* Card number `card` has lost its carrier, or has it again. Connections of a card without a carrier
 * are lost, and begin again on other cards. */
void io_xport_set_carrier(struct xport *x, unsigned card, bool has_carrier);
/* End the threads, and give the core all events that they have recorded. From then on, the data
 * thread does all work. Call this before the end of the process, while the core may still report
 * rounds. */
void io_xport_stop(struct xport *x);
void io_xport_figures(const struct xport *x, struct io_figures *ret);
/* Return the oldest beat of the running threads (dataloop_beat_ns); UINT64_MAX: none runs. Thread:
 * any. */
uint64_t io_xport_beat_ns(const struct xport *x);
#endif
