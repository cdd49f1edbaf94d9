#ifndef BPS_AGENT_CORE_PART_H
#define BPS_AGENT_CORE_PART_H
/* One partition of a tensor on its way through the rounds: see the drawing in core.h.
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
	PART_IDLE,    /* round complete (or 0) */
	PART_READY,   /* to be sent: in share->ready, job->parked, core->local, or without a home */
	PART_SENT,    /* its timer runs */
	PART_WAITING, /* the server asked for a pause: its timer runs */
	PART_OFFERED, /* on link->offered: the read could not start yet */
	PART_FETCHING, /* the read is running */
};

enum part_owe { OWE_HAVE = 1, OWE_DONATE = 2 };

struct agt_part {
	struct agt_tensor *tensor;
	uint32_t index;
	enum agt_part_state state;
	struct agt_link *link; /* where it lives now; NULL: nowhere, or a job of one member */
	struct lockstep_share *share; /* its job's on that link */
	uint64_t pgen;
	uint64_t round;        /* in IDLE: the last complete one, else the one under way */
	uint64_t crc_round;    /* crc is of this round's contribution */
	struct heap_node node; /* READY */
	/* In core->timers: SENT, WAITING, or IDLE and READY with HAVE unheard. */
	struct heap_node timer;
	TAILQ_ENTRY(agt_part) offered; /* OFFERED */
	TAILQ_ENTRY(agt_part) owing;   /* link->owing, when owes != 0 */
	TAILQ_ENTRY(agt_part) home;    /* link->parts */
	uint8_t owes;                  /* enum part_owe */
	bool is_charged;               /* its bytes count in link->inflight and job->inflight */
	bool is_parked;                /* READY: in job->parked, not share->ready */
	bool is_staging;               /* READY: its bytes are not in the inputs yet */
	bool is_stale;                 /* FETCHING for an older pgen: to be discarded */
	bool is_have_unconfirmed;      /* the server of this pgen has not acknowledged HAVE */
	bool is_overdue; /* sent again for want of an answer: the window does not count it */
	uint8_t n_tries, n_agains; /* how often it was said without an answer; pauses asked for */
	uint8_t n_bad_crc, n_misfits;
	uint32_t crc;                 /* of the contribution */
	uint64_t sent_ns, offered_ns; /* of this round: the first CONTRIB, 0: none yet; the offer */
	uint64_t donate_round;
	/* The offer in hand. */
	struct xport_read read;
	struct wire_msg offer;
	struct agt_kept_part *kept;
};
TAILQ_HEAD(part_list, agt_part);

/* ---- part.c ---- */
/* The only writer of the state; the table of what may follow is in part.c. */
void part_set_state(struct agt_part *part, enum agt_part_state state, const char *why);
struct agt_core *part_core(const struct agt_part *part);
size_t part_elems(const struct agt_part *part);
uint32_t part_bytes(const struct agt_part *part);
/* Of its first byte, in each buffer of its tensor. */
uint64_t part_offset(const struct agt_part *part);
/* Where the sum of its round goes. */
char *part_output(const struct agt_part *part);
/* The last round whose sum is here. */
uint64_t part_last_round(const struct agt_part *part);
/* A local round as the wire numbers it. */
uint64_t part_wire_round(const struct agt_part *part, uint64_t round);
/* The tensor's next round begins for this partition. */
void part_start(struct agt_part *part);
/* Its bytes are in the inputs. */
void part_staged(struct agt_part *part);
/* End its round without a sum. A running read is left to end stale. */
void part_abandon(struct agt_part *part, const char *why);
/* Take it out of every list and timer; a running read is left to end stale. */
void part_stop(struct agt_part *part);
/* It lives on link (NULL: nowhere) since pgen. */
void part_move(struct agt_part *part, struct agt_link *link, uint64_t pgen);
/* Its connection is gone, or new: its soft state has to be sent again (A3). */
void part_restart(struct agt_part *part);
/* Its timer in core->timers is due. */
void part_timer(struct agt_part *part);
/* Of its node in a heap. */
static inline struct agt_part *part_of(struct heap_node *node)
{
	return (struct agt_part *)((char *)node - offsetof(struct agt_part, node));
}
/* May it be sent, as far as its job's bytes under way go? */
bool part_fits_job(const struct agt_part *part);
/* Out of share->ready until its job has less under way. */
void part_park(struct agt_part *part);

/* Store its round as landed (K1): the sum is in the output, with crc, workers and contributors. */
void part_store_landed(struct agt_part *part);
/* The sum of its round is in the output: tell its tensor, and whoever copies it to devices. */
void part_report_sum(struct agt_part *part);
/* READY again: queue it. */
void part_make_ready(struct agt_part *part, const char *why);
void part_dequeue(struct agt_part *part);
/* Start its timer, longer each time by that count; for the answer to what was just sent. */
void part_start_timer(struct agt_part *part, uint64_t span_ns, uint8_t *count);
void part_await_answer(struct agt_part *part);
void part_stop_timer(struct agt_part *part);
/* Its bytes are under way no more. */
void part_uncharge(struct agt_part *part);
/* Has its server yet to confirm HAVE of the last round, and may it be sent now? */
bool part_is_have_due(const struct agt_part *part);
/* Owe HAVE if it is due. CONTRIB(r) implies HAVE(r - 1), but may have to wait for window, and other
 * members may wait for this message. */
void part_owe_have(struct agt_part *part);

/* ---- part_send.c ---- */
/* Tell its server that the results offered so far will not be read: before it leaves. */
void part_send_got(struct agt_part *part);
/* Errors: those of xport_send. */
int part_send_contrib(struct agt_part *part);
int part_send_owed(struct agt_part *part, enum part_owe what);
/* Make the local sum, and the crc if it is wanted, block by block while the bytes are in cache. The
 * sum is made once per round, also when another process made it: a server on this host may be
 * reading it since (B6). */
void part_prepare_contrib(struct agt_part *part, bool wants_crc);
/* Sum a partition of a job of one member into the output. */
void part_sum_local(struct agt_part *part);

/* ---- part_receive.c ---- */
/* A message of that server; what does not fit counts as stale, or closes the connection. */
void part_receive(struct agt_link *link, const struct wire_msg *m);
/* The read of its offer has ended. status: of xport_events.read_done. */
void part_read_done(struct agt_part *part, int status);
/* Start reading its offer. False: not now. */
bool part_fetch(struct agt_part *part);
#endif
