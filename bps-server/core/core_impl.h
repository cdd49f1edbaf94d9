#ifndef BPS_SERVER_CORE_CORE_IMPL_H
#define BPS_SERVER_CORE_CORE_IMPL_H
/* Objects of the server's core, which all of its files share. Each file has a header of its own:
 *   core.c        the core as a whole, peers, the transport's events
 *   plan.c        jobs and partitions, as the scheduler announces and places them
 *   rounds.c      the effect of each message on slots and seats
 *   completion.c  when a round is complete, and what follows
 *   backup.c      rounds that do not wait for all members
 *   reads.c       reading contributions and donations, limited by windows
 *   sums.c        the summing, in slices
 *   retired.c     results of an older placement that may still be read
 *   owed.c        messages that wait to be sent to members
 *   slots.c       slots and seats: their states
 *   job.c         look-ups, failure of a job
 *   arrivals.c    which members are last */
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

/* A running read of a contribution or donation. If seat and slot are NULL, its data is not needed
 * any more, and its end only frees this object. */
struct fetch {
	struct xport_read rd;
	struct seat *seat; /* set for a contribution */
	struct slot *slot; /* set for a donation */
	struct buf *buf;
	struct srv_peer *peer;
	uint64_t round;
	uint32_t crc;
	TAILQ_ENTRY(fetch) link; /* in core->fetches, or in core->free_fetches when unused */
};

enum seat_state { SEAT_IDLE, SEAT_WANT_READ, SEAT_READING, SEAT_STAGED };

/* Messages that wait to be sent to a member until there is credit (permission to send). A result
 * that is offered for reading, because it is too large for a message, waits in peer->results
 * instead. */
enum owe { OWE_RESULT = 1, OWE_HAVE_OK = 2, OWE_DONATE_REQ = 4, OWE_BAD_CRC = 8, OWE_AGAIN = 16 };

/* Where a contribution or donation can be read. */
struct offer {
	uint64_t round, offset;
	uint32_t crc, workers;
	uint16_t segment, priority;
};

/* A seat: the state of one member of the job for one partition. */
struct seat {
	struct srv_part *part;
	struct srv_peer *peer;  /* connection of its last message; NULL: none, or closed */
	struct fetch *fetch;    /* set when READING */
	struct buf *buf;        /* set when STAGED and copied to staging memory */
	struct xport_loan loan; /* set when STAGED and read in place */
	struct offer offer;
	struct heap_node read_node; /* when WANT_READ and not parked: in peer->want */
	/* when WANT_READ and is_parked, for lack of staging memory: in core->parked */
	TAILQ_ENTRY(seat) parked;
	TAILQ_ENTRY(seat) staged; /* in slot->staged when STAGED, in the order of addition */
	TAILQ_ENTRY(seat) owing;  /* in peer->owing when owes != 0 */
	struct heap_node result;  /* in peer->results while an offer waits to be sent */
	uint64_t have_round;      /* round that a waiting OWE_HAVE_OK confirms */
	uint64_t retry_round;     /* round of a waiting OWE_BAD_CRC or OWE_AGAIN */
	uint32_t bad_crc;         /* crc that a waiting OWE_BAD_CRC rejects */
	uint8_t owes;             /* bitmap of enum owe */
	/* bit per slot: the member may still read the result that it was offered */
	uint8_t offered;
	/* Only in jobs with backup machines. has_spoken: the member has sent HAVE or CONTRIB under
	 * this pgen. has_round: newest round whose result the member has. */
	bool has_spoken;
	uint64_t has_round;
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
	/* Members that have contributed (set C of docs/reference/faults.md), and members that
	 * already have the result (set H). */
	struct member_set contributed, has;
	/* number of members in contributed, in has, and in either of the two */
	unsigned n_contributed, n_has, n_spoken;
	unsigned n_offered; /* members that may still read this slot's result (seat.offered) */
	unsigned n_staged;
	struct seat_list staged;
	/* memory of the sum: n_elems of dtype; also the accumulator, unless that has a wider
	 * type */
	struct buf *result;
	unsigned n_folded; /* contributions added so far */
	/* staged contributions that can be added next; only in sums with a fixed order */
	unsigned n_in_order;
	size_t pos;      /* number of elements that the current pass has summed */
	unsigned pass_n; /* number of staged contributions that the current pass adds */
	bool has_pass, is_last_pass;
	uint32_t crc, workers;
	bool has_crc;           /* false: not computed, because no network peer needed it yet */
	uint32_t crc_prev;      /* crc of the result of round - 1, as a member reported it */
	uint16_t crc_prev_from; /* the member that reported it */
	struct member_set contributors;
	struct arrivals_round arrivals;
	uint64_t complete_ns; /* time when SUMMING began */
	/* Used in the state DONATING: the result is requested from the member `donor`, which
	 * already has it. */
	uint16_t donor;
	struct offer donation;
	struct fetch *fetch;
	bool wants_fetch;
	uint64_t donor_deadline_ns;
	TAILQ_ENTRY(slot) work;    /* in core->work when is_queued */
	TAILQ_ENTRY(slot) waiting; /* in core->donating when DONATING */
	/* In core->holding when is_holding: the slot is OPEN and has staged contributions. */
	TAILQ_ENTRY(slot) holding;
	/* In core->cutting when is_cutting: the slot is OPEN, and its round ends at cut_ns without
	 * the late members. */
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
	bool is_confirmed;  /* a plan has named it since the last resynchronization began */
	bool waits_for_all; /* waits for all members, even in jobs with backup machines */
	/* f32 accumulator of f16 and bf16; used by the slot that is being summed */
	struct buf *acc;
	struct slot slots[2];
	/* Members under the present pgen. Only they may send, and a round needs all of them. */
	struct member_set live;
	uint16_t n_live;
	uint16_t n_seats; /* number of seats, including those of members that are gone */
	struct seat seats[];
};

struct srv_tensor {
	uint32_t n_parts, part_elems;
	uint64_t n_elems;
	uint8_t dtype;
	bool is_of_library;      /* the library made it for its collectives, see CTL_OWN_TENSORS */
	struct srv_part **parts; /* NULL entry: the partition is not on this thread */
};

struct srv_job_member {
	uint32_t agent; /* agent id */
	uint32_t workers;
	char host[CTL_NAME_MAX + 1];
};
struct srv_job {
	TAILQ_ENTRY(srv_job) link;
	uint32_t id, flags;
	/* view in which it formed; a different job with the same number formed in another view */
	uint64_t formed;
	uint64_t view; /* view of its list of members */
	uint16_t n_members, n_live;
	uint16_t backup; /* contributions that a round need not wait for; 0: needs all */
	uint64_t grace_ns;
	struct member_set live; /* members that are not gone */
	bool has_failed, is_confirmed;
	int fail_code; /* error code after a failure */
	char *fail_text;
	char name[CTL_JOB_NAME_MAX + 1];
	struct arrivals *arrivals;
	uint32_t n_tensors;
	struct srv_tensor *tensors;
	struct srv_job_member *members;
};

struct srv_peer { /* a connection of an agent; stored in xconn->user */
	TAILQ_ENTRY(srv_peer) link;
	struct xconn *conn;
	struct seat_list owing;
	struct heap results; /* seats with a result that is to be offered, the most urgent first */
	uint64_t result_seq; /* used for the order in the heap results */
	struct heap want;    /* seats that WANT_READ, except parked ones */
	TAILQ_ENTRY(srv_peer) ready; /* in core->ready when is_ready: it has reads to start */
	bool is_ready;
	size_t reading_bytes;
	bool is_stuck; /* xport_send returned -EAGAIN; the writable event follows */
	/* an offer of a result was not sent, because the send queue is long or there is no credit;
	 * the writable event follows */
	bool is_full;
};

/* A result that was offered under an older pgen (placement). Its buffer is kept until no peer can
 * be reading it (B3). */
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
	uint64_t cut_due_ns; /* at or before the deadline of the first slot in cutting */
	struct seat_list parked;
	TAILQ_HEAD(, retired_result) retired;
	TAILQ_HEAD(, fetch) fetches, free_fetches;
	uint64_t now_ns, read_seq;
	struct srv_job *last_job; /* result of the last srv_job_find */
	struct srv_stats stats;
	bool is_pumping;
	/* a read found no staging memory, and a running read or sum will free some */
	bool is_starved;
	bool is_scattered; /* some seats are parked because the free staging memory is fragmented */
};

#ifndef SRV_BLOCK_ELEMS /* smaller in the simulator */
/* a block of operands of this size fits in the first levels of the CPU's cache */
#define SRV_BLOCK_ELEMS 8192
#endif
#endif
