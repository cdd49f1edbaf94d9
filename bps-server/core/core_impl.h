#ifndef BPS_SERVER_CORE_CORE_IMPL_H
#define BPS_SERVER_CORE_CORE_IMPL_H
/* Objects of the server's core, shared by its files:
 *   core.c    jobs, partitions, peers: what the scheduler says
 *   rounds.c  messages: what each does to slots and seats
 *   slots.c   slots and seats: their states, what is owed to whom, who may still read a result
 *   reads.c   fetching contributions and donations under windows
 *   sums.c    the arithmetic, in slices
 *   backup.c  rounds that do not wait for everybody
 * and of arrivals.h, who was last. */
#include <sys/queue.h>

#include "bps-server/core/core.h"
#include "common/data/dtype.h"
#include "common/base/heap.h"
#include "common/data/reduce.h"

struct slot;
struct srv_peer;
struct seat;
TAILQ_HEAD(seat_list, seat);
TAILQ_HEAD(slot_list, slot);

/* A read in flight. Detached (seat and slot NULL) when what it was for is gone; its end then only
 * frees it. */
struct fetch {
	struct xport_read rd;
	struct seat *seat; /* of a contribution, or */
	struct slot *slot; /* of a donation */
	struct buf *buf;
	struct srv_peer *peer;
	uint64_t round;
	uint32_t crc;
	TAILQ_ENTRY(fetch) link; /* core->fetches, or core->free_fetches */
};

enum seat_state { SEAT_IDLE, SEAT_WANT_READ, SEAT_READING, SEAT_STAGED };

/* What a member is owed; sent as soon as there is credit. A result that is offered, and not inside
 * the message, is in peer->results instead. */
enum owe { OWE_RESULT = 1, OWE_HAVE_OK = 2, OWE_DONATE_REQ = 4, OWE_BAD_CRC = 8, OWE_AGAIN = 16 };

/* Where a contribution or donation can be read. */
struct offer {
	uint64_t round, offset;
	uint32_t crc, workers;
	uint16_t segment, priority;
};

/* A member's seat at a partition. */
struct seat {
	struct srv_part *part;
	struct srv_peer
		*peer;       /* it spoke last on this connection; NULL: not in this pgen, or gone */
	struct fetch *fetch; /* when READING */
	struct buf *buf;     /* when STAGED, or */
	struct xport_loan loan; /* when STAGED: it is read where it lies */
	struct offer offer;
	struct heap_node read_node; /* when WANT_READ and not parked: in peer->want */
	TAILQ_ENTRY(seat) parked;   /* when WANT_READ and is_parked: in core->parked */
	TAILQ_ENTRY(seat) staged;   /* slot->staged, in the order of addition */
	TAILQ_ENTRY(seat) owing;    /* peer->owing, when owes != 0 */
	struct heap_node result;    /* peer->results: it is owed a result that is offered */
	uint64_t have_round;        /* of OWE_HAVE_OK */
	uint64_t retry_round;       /* of OWE_BAD_CRC and OWE_AGAIN */
	uint32_t bad_crc;           /* of OWE_BAD_CRC: what it refuses */
	uint8_t owes;               /* enum owe */
	uint8_t offered;            /* bit per slot: our RESULT offer may still be read */
	bool has_spoken;            /* in this pgen; */
	uint64_t has_round;         /* and said that it has this one; jobs with backup only */
	bool is_parked;
	enum seat_state state;
	uint16_t member;
};

enum slot_state { SLOT_EMPTY, SLOT_OPEN, SLOT_SUMMING, SLOT_DONATING, SLOT_DONE };

struct slot {
	struct srv_part *part;
	enum slot_state state;
	uint8_t op;
	bool op_known, crc_prev_known, is_queued, is_holding, is_cutting;
	uint64_t round;
	struct member_set contributed, has;      /* C and H */
	unsigned n_contributed, n_has, n_spoken; /* |C|, |H|, |C u H| */
	unsigned n_offered;                      /* seats whose offered bit of this slot is set */
	unsigned n_staged;
	struct seat_list staged;
	struct buf *result;  /* n_elems of dtype; also the accumulator when the types agree */
	unsigned n_folded;   /* contributions added so far */
	unsigned n_in_order; /* staged ones that may be added next, when the order counts */
	size_t pos;          /* elements done of the pass in hand */
	unsigned pass_n;     /* staged seats that the pass in hand takes */
	bool has_pass, is_last_pass;
	uint32_t crc, workers;
	bool has_crc;           /* else nobody has needed it yet */
	uint32_t crc_prev;      /* echoed for round - 1 */
	uint16_t crc_prev_from; /* by that member */
	struct member_set contributors;
	struct arrivals_round arrivals;
	uint64_t complete_ns; /* when SUMMING began */
	/* DONATING */
	uint16_t donor;
	struct offer donation;
	struct fetch *fetch;
	bool wants_fetch;
	uint64_t donor_deadline_ns;
	TAILQ_ENTRY(slot) work;    /* core->work when is_queued */
	TAILQ_ENTRY(slot) waiting; /* core->donating when DONATING */
	/* core->holding when is_holding: OPEN with staged contributions */
	TAILQ_ENTRY(slot) holding;
	/* core->cutting when is_cutting: OPEN, and complete at cut_ns without those who are late */
	TAILQ_ENTRY(slot) cutting;
	uint64_t cut_ns;
};

struct srv_part {
	struct srv_job *job;
	uint32_t tensor, index;
	size_t n_elems;
	uint32_t bytes;
	uint8_t dtype;
	uint64_t pgen;
	bool is_confirmed;  /* since the last resync began */
	bool waits_for_all; /* also with backup machines */
	struct buf *acc; /* f32 accumulator of f16 and bf16; of the one slot that is being summed */
	struct slot slots[2];
	/* The members of its pgen: only they speak, and all of them must. */
	struct member_set live;
	uint16_t n_live;
	uint16_t n_seats; /* with those that are gone */
	struct seat seats[];
};

struct srv_tensor {
	uint32_t n_parts, part_elems;
	uint64_t n_elems;
	uint8_t dtype;
	bool is_of_library;      /* see CTL_OWN_TENSORS */
	struct srv_part **parts; /* NULL: not on this thread */
};

struct srv_job_member {
	uint32_t agent; /* id */
	uint32_t workers;
	char host[CTL_NAME_MAX + 1];
};
struct srv_job {
	TAILQ_ENTRY(srv_job) link;
	uint32_t id, flags;
	uint64_t formed; /* view: tells it from another job that got the same number */
	uint64_t view;   /* of its members */
	uint16_t n_members, n_live;
	uint16_t backup; /* contributions that a round need not wait for; 0: waits for all */
	uint64_t grace_ns;
	struct member_set live; /* members that are not gone */
	bool has_failed, is_confirmed;
	int fail_code; /* when it has failed */
	char *fail_text;
	char name[CTL_JOB_NAME_MAX + 1];
	struct arrivals *arrivals;
	uint32_t n_tensors;
	struct srv_tensor *tensors;
	struct srv_job_member *members;
};

struct srv_peer { /* xconn->user */
	TAILQ_ENTRY(srv_peer) link;
	struct xconn *conn;
	struct seat_list owing;
	struct heap results; /* seats that are owed one that is offered, the most urgent first */
	uint64_t result_seq; /* of keys in results */
	struct heap want;    /* seats that WANT_READ, but for the parked ones */
	TAILQ_ENTRY(srv_peer) ready; /* core->ready when is_ready: wants reads and may have them */
	bool is_ready;
	size_t reading_bytes;
	bool is_stuck; /* send said -EAGAIN, writable follows */
	bool is_full; /* the same, to a result that is offered: much waits to leave, or no credit */
};

/* A result that was offered under an older pgen: kept until nobody can be reading it (B3). */
struct retired_result {
	TAILQ_ENTRY(retired_result) link;
	struct buf *buf;
	uint64_t pgen, round;
	uint32_t job, tensor, part;
	unsigned n_peers;
	struct srv_peer *peers[];
};

struct srv_core {
	struct srv_config cfg;
	struct srv_env env;
	struct pool *sums, *staging;
	TAILQ_HEAD(, srv_job) jobs;
	TAILQ_HEAD(, srv_peer) peers;
	TAILQ_HEAD(, srv_peer) ready;
	struct slot_list work, donating, holding, cutting;
	uint64_t cut_due_ns; /* of the first of cutting, or before */
	struct seat_list parked;
	TAILQ_HEAD(, retired_result) retired;
	TAILQ_HEAD(, fetch) fetches, free_fetches;
	uint64_t now_ns, read_seq;
	struct srv_job *last_job; /* of the last look-up */
	struct srv_stats stats;
	bool is_pumping;
	bool is_starved;   /* somebody found no staging, and more will be free */
	bool is_scattered; /* some are parked who found no staging in one piece */
};

#ifndef SRV_BLOCK_ELEMS      /* smaller in the simulator */
#define SRV_BLOCK_ELEMS 8192 /* one block of operands stays in the first cache levels */
#endif

/* core.c */
/* NULL: not known here. */
struct srv_job *srv_job_find(struct srv_core *core, uint32_t id);
/* NULL: not known here, or of another thread. */
struct srv_part *srv_part_find(const struct srv_job *job, uint32_t tensor, uint32_t part);
/* The first failure of a job is kept and told through env->fail; nothing is summed for it any
 * more. */
void srv_job_fail(struct srv_core *core, struct srv_job *job, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* rounds.c */
/* xport_events.message; ctx is the core. Whatever the bytes say: at worst that peer is closed, or
 * its job fails. */
void rounds_message(void *ctx, struct xconn *c, const struct wire_msg *m);

/* slots.c */
/* The slot of a round (S3); it may hold another round. */
struct slot *part_slot(struct srv_part *part, uint64_t round);
/* The only writers of the states; the tables of what may follow are in slots.c. */
void slot_set_state(struct srv_core *core, struct slot *slot, enum slot_state state);
void seat_set_state(struct seat *seat, enum seat_state state);
/* The member is owed a message, sent at once or when there is credit; nothing if it is not
 * connected. */
void seat_owe(struct seat *seat, enum owe what, uint64_t round);
/* Send what the peer is owed, as far as its credit goes. */
void peer_send_owed(struct srv_peer *peer);
/* Whatever the peer still owed or was owed is void; its seats forget it. */
void slots_peer_down(struct srv_core *core, struct srv_peer *peer);
/* Back to EMPTY (S6); a result that may still be read is retired. */
void slot_clear(struct srv_core *core, struct slot *slot);
/* The seat is as at the start of a pgen. It must not be STAGED: clear the slots first. */
void seat_clear(struct srv_core *core, struct seat *seat);
/* The seat's contribution lies in seat->buf or seat->loan and is right: it counts from now on. */
void seat_staged(struct srv_core *core, struct seat *seat);
/* The member is in C of the slot's round; a second time changes nothing. */
void slot_add_contributed(struct slot *slot, unsigned member);
/* The seat's member is in H of the slot's round; a second time changes nothing. May complete the
 * round. */
void slot_add_has(struct srv_core *core, struct slot *slot, struct seat *seat);
/* S4: has everybody spoken, and what follows? */
void slot_check_complete(struct srv_core *core, struct slot *slot);
/* The slot's result is there: tell those who wait for it. */
void slot_done(struct srv_core *core, struct slot *slot);
/* That member will not read the slot's result any more. */
void slot_unoffer(struct slot *slot, struct seat *seat);
/* Ask the next member that has the result of a DONATING slot. */
void slot_ask_donor(struct srv_core *core, struct slot *slot);
/* Its memory for the result. NULL: there is none left, and the job has failed. */
void *slot_result(struct srv_core *core, struct slot *slot);
/* Before the first addition: if everybody has the other slot's result, the two swap their memory,
 * so that one of them mostly does: more of it is in the cache. */
void slot_swap_spent(struct slot *slot);
/* A message may say that its sender reads a result of an older placement no more. */
void retired_acknowledged(struct srv_core *core, struct srv_peer *peer, const struct wire_msg *m);

/* reads.c */
/* Read seat->offer when it is its turn; the seat was IDLE and is connected. */
void reads_want(struct srv_core *core, struct seat *seat);
/* Its offer is not needed any more; a read that runs ends without effect. A STAGED seat stays
 * so. */
void reads_forget(struct srv_core *core, struct seat *seat);
/* The seat was parked and queues again. */
void reads_unpark(struct srv_core *core, struct seat *seat);
/* Start the reads that windows and staging allow. */
void reads_pump(struct srv_core *core);
/* xport_events.read_done; ctx is the core. */
void reads_done(void *ctx, struct xport_read *rd, int status);
/* Nobody waits for this read any more. */
void fetch_detach(struct fetch *f);
/* Staging for a member's contribution, back by staging_put. NULL: there is none (relief is under
 * way), or with *ret_is_early set the sum is ordered, memory is short, and others are before it. */
struct buf *staging_get(struct srv_core *core, const struct slot *slot, uint16_t member,
	size_t bytes, bool *ret_is_early);
void staging_put(struct srv_core *core, struct buf *buf);

/* sums.c */
/* srv_core_work folds what the slot has staged. */
void sums_queue(struct srv_core *core, struct slot *slot);
/* Forget staged contributions and the accumulator. */
void sums_discard(struct srv_core *core, struct slot *slot);
/* Would a pass set staging free? */
bool sums_can_fold(const struct slot *slot);
/* Queue all that can be folded, to free staging. */
void sums_relieve(struct srv_core *core);

/* backup.c: of jobs with backup workers */
/* The seat's member has said that it has the results up to that round (0: none). */
void backup_note_has(struct srv_core *core, struct seat *seat, uint64_t round);
/* May it say so? Not of a round that is being summed here. */
bool backup_may_have(const struct seat *seat, uint64_t round);
/* May a slot be taken for that round? */
bool backup_can_open(const struct srv_part *part, uint64_t round);
/* It has been: some may have its result. */
void backup_slot_opened(struct srv_core *core, struct slot *slot);
/* Is a round that is OPEN, and whose result nobody has, to be summed now? */
bool backup_is_complete(struct srv_core *core, struct slot *slot);
/* Complete the rounds whose time is over; the next deadline. */
uint64_t backup_tick(struct srv_core *core);

/* The nth (from 0) member of its pgen in their order; n_seats: there are fewer. */
uint16_t part_nth_member(const struct srv_part *part, unsigned nth);

static inline bool part_is_ordered(const struct srv_part *part)
{
	return part->job->flags & JOB_DETERMINISTIC;
}
#endif
