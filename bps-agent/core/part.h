#ifndef BPS_AGENT_CORE_PART_H
#define BPS_AGENT_CORE_PART_H
/* A partition of a tensor in its rounds: see the diagram in core.h.
 *   part.c          states, timers, queues, placement
 *   part_send.c     contributions, HAVE, GOT, donations, sums of jobs of one member
 *   part_receive.c  results and the reads that fetch them, answers of the server
 * A partition belongs to its tensor. Thread: the core's. */
#include <sys/queue.h>

#include "bps-agent/core/core.h"
#include "common/base/heap.h"

struct agt_link;
struct lockstep_share;

enum agt_part_state {
	PART_IDLE,     /* round complete (or 0) */
	PART_READY,    /* to be sent: in share->ready, job->parked, core->local, or not placed */
	PART_SENT,     /* its timer runs */
	PART_WAITING,  /* received AGAIN: its timer runs */
	PART_OFFERED,  /* on link->offered: the read could not start yet */
	PART_FETCHING, /* the read is running */
};

enum part_owe { OWE_HAVE = 1, OWE_DONATE = 2 };

struct agt_part {
	struct agt_tensor *tensor;
	uint32_t index;
	enum agt_part_state state;
	struct agt_link *link; /* where it lives now; NULL: nowhere, or a job of one member */
	struct lockstep_share *share; /* share of its job on that link */
	uint64_t pgen;
	uint64_t round;        /* in IDLE the last complete round, else the one under way */
	uint64_t crc_round;    /* round of the contribution that crc belongs to */
	struct heap_node node; /* used in READY */
	/* In core->timers: SENT, WAITING, or IDLE and READY with unconfirmed HAVE. */
	struct heap_node timer;
	TAILQ_ENTRY(agt_part) offered; /* used in OFFERED */
	TAILQ_ENTRY(agt_part) owing;   /* link->owing, when owes != 0 */
	TAILQ_ENTRY(agt_part) home;    /* link->parts */
	uint8_t owes;                  /* enum part_owe */
	bool is_charged;               /* its bytes count in link->inflight and job->inflight */
	bool is_parked;                /* READY: in job->parked, not share->ready */
	bool is_staging;               /* READY: its bytes are not in the inputs yet */
	bool is_stale;                 /* FETCHING for an older pgen: to be discarded */
	bool is_have_unconfirmed;      /* the server of this pgen has not acknowledged HAVE */
	bool is_overdue; /* sent again because no answer came: the window does not count it */
	uint8_t n_tries, n_agains; /* number of sends without an answer; number of AGAINs */
	uint8_t n_bad_crc, n_misfits;
	uint32_t crc; /* of the contribution */
	/* of this round: time of the first CONTRIB (0: none yet), and of the offer */
	uint64_t sent_ns, offered_ns;
	uint64_t donate_round;
	/* The current offer. */
	struct xport_read read;
	struct wire_msg offer;
	struct agt_kept_part *kept;
};
TAILQ_HEAD(part_list, agt_part);

/* ---- part.c ---- */
/* Set the state. Only this function writes it; the table of allowed changes is in part.c. */
void part_set_state(struct agt_part *part, enum agt_part_state state, const char *why);
struct agt_core *part_core(const struct agt_part *part);
size_t part_elems(const struct agt_part *part);
uint32_t part_bytes(const struct agt_part *part);
/* Return the offset of its first byte, in each buffer of its tensor. */
uint64_t part_offset(const struct agt_part *part);
/* Return where the sum of its round goes. */
char *part_output(const struct agt_part *part);
/* Return the last round whose sum is here. */
uint64_t part_last_round(const struct agt_part *part);
/* Convert a local round to the number on the wire. */
uint64_t part_wire_round(const struct agt_part *part, uint64_t round);
/* Start the tensor's next round for this partition. */
void part_start(struct agt_part *part);
/* Record that its bytes are in the inputs. */
void part_staged(struct agt_part *part);
/* End its round without a sum. A running read is left to end stale. */
void part_abandon(struct agt_part *part, const char *why);
/* Take it out of every list and timer; a running read is left to end stale. */
void part_stop(struct agt_part *part);
/* Place it on link (NULL: nowhere) under pgen. */
void part_move(struct agt_part *part, struct agt_link *link, uint64_t pgen);
/* Send its soft state again (A3): its connection is gone, or new. */
void part_restart(struct agt_part *part);
/* Handle its timer in core->timers, which is due. */
void part_timer(struct agt_part *part);
/* Convert its node in a heap. */
static inline struct agt_part *part_of(struct heap_node *node)
{
	return (struct agt_part *)((char *)node - offsetof(struct agt_part, node));
}
/* Return whether the partition can be sent within its job's limit of bytes in flight. */
bool part_fits_job(const struct agt_part *part);
/* Move it out of share->ready until its job has less under way. */
void part_park(struct agt_part *part);

/* Store its round as landed (K1): the sum is in the output, with crc, workers and contributors. */
void part_store_landed(struct agt_part *part);
/* Report to its tensor, and to the executor for a device tensor, that the sum is in the output. */
void part_report_sum(struct agt_part *part);
/* Queue it as READY again. */
void part_make_ready(struct agt_part *part, const char *why);
void part_dequeue(struct agt_part *part);
/* Start the timer for an answer: span_ns, doubled *count times. Increments *count up to a limit. */
void part_start_timer(struct agt_part *part, uint64_t span_ns, uint8_t *count);
void part_await_answer(struct agt_part *part);
void part_stop_timer(struct agt_part *part);
/* Stop counting its bytes as under way. */
void part_uncharge(struct agt_part *part);
/* Return whether HAVE of the last round is unconfirmed and may be sent now. */
bool part_is_have_due(const struct agt_part *part);
/* Queue HAVE if it is due. CONTRIB(r) implies HAVE(r - 1), but may have to wait for window, and
 * other members may wait for this message. */
void part_owe_have(struct agt_part *part);

/* ---- part_send.c ---- */
/* Release the results that its server has offered and that will not be read: before it moves. */
void part_send_got(struct agt_part *part);
/* Send the contribution. Errors: those of xport_send. */
int part_send_contrib(struct agt_part *part);
int part_send_owed(struct agt_part *part, enum part_owe what);
/* Compute the local sum, and the crc if it is wanted, block by block while the bytes are in cache.
 * The sum is made once per round, also across a restart: a server on this host may be reading it
 * (B6). */
void part_prepare_contrib(struct agt_part *part, bool wants_crc);
/* Sum a partition of a job of one member into the output. */
void part_sum_local(struct agt_part *part);

/* ---- part_receive.c ---- */
/* Handle a message of that server. If it does not fit, it counts as stale or closes the
 * connection. */
void part_receive(struct agt_link *link, const struct wire_msg *m);
/* Handle the end of the read of its offer. status: of xport_events.read_done. */
void part_read_done(struct agt_part *part, int status);
/* Start reading its offer. False: not possible now. */
bool part_fetch(struct agt_part *part);
#endif
