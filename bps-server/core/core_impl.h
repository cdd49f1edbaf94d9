#ifndef BPS_SERVER_CORE_CORE_IMPL_H
#define BPS_SERVER_CORE_CORE_IMPL_H
/* Objects of the server's core, which all of its files share. Each file has a header of its own:
 *   core.c        the core as a whole, peers, the transport's events
 *   plan.c        jobs and partitions, as the scheduler announces and places them
 *   rounds.c      messages: what each does to slots and seats
 *   completion.c  when a round is complete, and what follows
 *   backup.c      rounds that do not wait for everybody
 *   reads.c       fetching contributions and donations under windows
 *   sums.c        the arithmetic, in slices
 *   retired.c     results of an older placement that may still be read
 *   owed.c        messages that members are owed
 *   slots.c       slots and seats: their states
 *   job.c         look-ups, failure of a job
 * arrivals.h is about who was last. */
#include <sys/queue.h>

#include "bps-server/core/core.h"
#include "common/base/heap.h"
#include "common/data/dtype.h"
#include "common/data/reduce.h"

struct slot;
struct srv_peer;
struct seat;
TAILQ_HEAD(seat_list, seat);
TAILQ_HEAD(slot_list, slot);

/* A read in flight. seat and slot NULL: its purpose is gone, its end only frees it. */
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
#endif
