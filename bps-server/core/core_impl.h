#ifndef BPS_SERVER_CORE_CORE_IMPL_H
#define BPS_SERVER_CORE_CORE_IMPL_H
/* Objects of the server's core, which all of its files share. Each file has a header of its own:
 *   core.c the core as a whole, peers, the transport's events plan.c jobs and partitions, as the
 *   scheduler announces and places them rounds.c messages: what each does to slots and seats
 *   completion.c when a round is complete, and what follows backup.c rounds that do not wait for
 *   all members reads.c fetching contributions and donations under windows sums.c the arithmetic,
 *   in slices retired.c results of an older placement that may still be read owed.c messages that
 *   wait to be sent to members slots.c slots and seats: their states job.c look-ups, failure of a
 *   job
 * arrivals.h measures which members are last. */
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

/* A running read. seat and slot NULL: its result is not needed any more, and its end only frees
 * it. */
struct fetch {
	struct xport_read rd;
	struct seat *seat; /* set for a contribution */
	struct slot *slot; /* set for a donation */
	struct buf *buf;
	struct srv_peer *peer;
	uint64_t round;
	uint32_t crc;
	TAILQ_ENTRY(fetch) link; /* core->fetches, or core->free_fetches */
};

enum seat_state { SEAT_IDLE, SEAT_WANT_READ, SEAT_READING, SEAT_STAGED };

/* Messages that wait to be sent to a member until there is credit. A result that is offered, not
 * inline, is in peer->results instead. */
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
	struct srv_peer *peer;  /* connection of its last message; NULL: none, or closed */
	struct fetch *fetch;    /* set when READING */
	struct buf *buf;        /* set when STAGED in own memory */
	struct xport_loan loan; /* set when STAGED and read in place */
	struct offer offer;
	struct heap_node read_node; /* when WANT_READ and not parked: in peer->want */
	TAILQ_ENTRY(seat) parked;   /* when WANT_READ and is_parked: in core->parked */
	TAILQ_ENTRY(seat) staged;   /* slot->staged, in the order of addition */
	TAILQ_ENTRY(seat) owing;    /* peer->owing, when owes != 0 */
	struct heap_node
		result;       /* in peer->results while the member is owed an offer of a result */
	uint64_t have_round;  /* of OWE_HAVE_OK */
	uint64_t retry_round; /* of OWE_BAD_CRC and OWE_AGAIN */
	uint32_t bad_crc;     /* of OWE_BAD_CRC: what it refuses */
	uint8_t owes;         /* enum owe */
	uint8_t offered;      /* bit per slot: our RESULT offer may still be read */
	/* Jobs with backup only: the member has sent HAVE or CONTRIB in this pgen; the newest round
	 * whose result it has. */
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
	struct member_set contributed, has;      /* the sets C and H */
	unsigned n_contributed, n_has, n_spoken; /* |C|, |H|, |C u H| */
	unsigned n_offered;                      /* seats whose offered bit of this slot is set */
	unsigned n_staged;
	struct seat_list staged;
	struct buf *result;  /* n_elems of dtype; also the accumulator when the types are equal */
	unsigned n_folded;   /* contributions added so far */
	unsigned n_in_order; /* staged ones that may be added next, when the order matters */
	size_t pos;          /* elements that the current pass has done */
	unsigned pass_n;     /* staged seats that the current pass adds */
	bool has_pass, is_last_pass;
	uint32_t crc, workers;
	bool has_crc;           /* false: not computed, because no network peer needed it yet */
	uint32_t crc_prev;      /* crc of round - 1, as a member echoed it */
	uint16_t crc_prev_from; /* the member that echoed it */
	struct member_set contributors;
	struct arrivals_round arrivals;
	uint64_t complete_ns; /* time when SUMMING began */
	/* State of DONATING. */
	uint16_t donor;
	struct offer donation;
	struct fetch *fetch;
	bool wants_fetch;
	uint64_t donor_deadline_ns;
	TAILQ_ENTRY(slot) work;    /* core->work when is_queued */
	TAILQ_ENTRY(slot) waiting; /* core->donating when DONATING */
	/* In core->holding when is_holding: OPEN with staged contributions. */
	TAILQ_ENTRY(slot) holding;
	/* In core->cutting when is_cutting: OPEN, and complete at cut_ns without the late
	 * members. */
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
	bool waits_for_all; /* waits for all members, even in jobs with backup machines */
	/* f32 accumulator of f16 and bf16; used by the slot that is being summed */
	struct buf *acc;
	struct slot slots[2];
	/* Members of this pgen: only they may send, and the round needs all of them. */
	struct member_set live;
	uint16_t n_live;
	uint16_t n_seats; /* includes members that are gone */
	struct seat seats[];
};

struct srv_tensor {
	uint32_t n_parts, part_elems;
	uint64_t n_elems;
	uint8_t dtype;
	bool is_of_library;      /* see CTL_OWN_TENSORS */
	struct srv_part **parts; /* NULL entry: the partition is not on this thread */
};

struct srv_job_member {
	uint32_t agent; /* id */
	uint32_t workers;
	char host[CTL_NAME_MAX + 1];
};
struct srv_job {
	TAILQ_ENTRY(srv_job) link;
	uint32_t id, flags;
	uint64_t formed; /* view; distinguishes it from another job that got the same number */
	uint64_t view;   /* of its members */
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

struct srv_peer { /* xconn->user */
	TAILQ_ENTRY(srv_peer) link;
	struct xconn *conn;
	struct seat_list owing;
	struct heap results; /* seats with a result that is to be offered, the most urgent first */
	uint64_t result_seq; /* sequence number for keys in results */
	struct heap want;    /* seats that WANT_READ, except parked ones */
	TAILQ_ENTRY(srv_peer) ready; /* core->ready when is_ready: has reads to start */
	bool is_ready;
	size_t reading_bytes;
	bool is_stuck; /* xport_send returned -EAGAIN; the writable event follows */
	bool is_full;  /* the same for an offered result: the send queue is long, or no credit */
};

/* A result that was offered under an older pgen. It is kept until no peer can be reading it
 * (B3). */
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
	struct srv_job *last_job; /* of the last look-up */
	struct srv_stats stats;
	bool is_pumping;
	bool is_starved;   /* a read found no staging, and some will be freed */
	bool is_scattered; /* some seats are parked because free staging is fragmented */
};

#ifndef SRV_BLOCK_ELEMS      /* smaller in the simulator */
#define SRV_BLOCK_ELEMS 8192 /* one block of operands stays in the first cache levels */
#endif
#endif
