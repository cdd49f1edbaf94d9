#ifndef BPS_SERVER_CORE_CORE_IMPL_H
#define BPS_SERVER_CORE_CORE_IMPL_H
/* Objects that all files of the server's core share. The files:
 *   events.c        the core as a whole, peers, the transport's events, slices of work
 *   plan.c          jobs and partitions, as the scheduler announces and places them
 *   rounds.c        the effect of each message on slots and seats
 *   rule_in_step.c  rounds that wait for all members
 *   rule_backup.c   rounds that do not wait for all members
 *   completion.c    what follows when a round is complete
 *   sums.c          the summing, in slices
 *   reads.c         reading contributions and donations, limited by windows
 *   retired.c       results of an older placement that may still be read
 *   owed.c          messages that wait to be sent to members
 *   slots.c         slots and seats: their states
 *   job.c           look-ups, failure of a job
 *   values.c        partitions of values, which the server keeps from round to round
 *   arrivals.c      statistics of the members that contribute last
 * A file calls only files below it, except through two tables: completion.c asks the job's rule
 * (struct round_rule), and lower files report to completion.c and sums.c (struct srv_reports). */
#include <sys/queue.h>

#include "bps-server/core/core.h"
#include "common/base/heap.h"
#include "common/data/reduce.h"
#include "common/data/shape.h"

struct slot;
struct srv_peer;
struct srv_value;
struct seat;
TAILQ_HEAD(seat_list, seat);
TAILQ_HEAD(slot_list, slot);

/* A running read of a contribution or donation. If seat and slot are NULL, the data is not needed
 * any more, and the end of the read only frees this object. */
struct fetch {
	struct xport_read rd;
	struct seat *seat; /* seat whose contribution is read; NULL for a donation */
	struct slot *slot; /* slot whose result is read from a donor; NULL for a contribution */
	struct buf *buf;
	struct srv_peer *peer;
	uint64_t round;
	uint32_t crc;
	/* link in the list core->fetches, or in core->free_fetches when unused */
	TAILQ_ENTRY(fetch) link;
};

enum seat_state { SEAT_IDLE, SEAT_WANT_READ, SEAT_READING, SEAT_STAGED };

/* Kinds of messages that the server must still send to a member. A message waits until the
 * connection has credit (permission to send). A result that is too large for a message is offered
 * for reading, and the offer waits in peer->results instead. */
enum owe { OWE_RESULT = 1, OWE_HAVE_OK = 2, OWE_DONATE_REQ = 4, OWE_BAD_CRC = 8, OWE_AGAIN = 16 };

/* Place from which a contribution or donation can be read. arrived_ns: time at which the member's
 * first offer of this round under this pgen arrived. */
struct offer {
	uint64_t round, offset, arrived_ns;
	uint32_t crc, workers;
	uint16_t segment, priority;
};

/* A seat: the state of one member of the job for one partition. */
struct seat {
	struct srv_part *part;
	/* connection on which the member's last message arrived; NULL: there is none, or the
	 * connection is closed */
	struct srv_peer *peer;
	struct fetch *fetch; /* running read of the contribution; set in the state READING */
	/* copy of the contribution in staging memory; may be set in the state STAGED */
	struct buf *buf;
	/* access to the contribution in the agent's memory; used in the state STAGED if the
	 * contribution is not copied to buf */
	struct xport_loan loan;
	struct offer offer;
	/* node in the heap peer->want; used in the state WANT_READ if is_parked is false */
	struct heap_node read_node;
	/* The seat's link in the list core->parked. Used in the state WANT_READ if is_parked is
	 * true. The seat's read then waits for staging memory. */
	TAILQ_ENTRY(seat) parked;
	/* The seat's link in the list slot->staged. Used in the state STAGED. The list has the
	 * order in which the contributions are added to the sum. */
	TAILQ_ENTRY(seat) staged;
	TAILQ_ENTRY(seat) owing; /* link in the list peer->owing; used when `owes` is not 0 */
	/* node in the heap peer->results; used while an offer of a result waits to be sent */
	struct heap_node result;
	uint64_t have_round;  /* round that a queued OWE_HAVE_OK will confirm */
	uint64_t retry_round; /* round to which a queued OWE_BAD_CRC or OWE_AGAIN refers */
	uint32_t bad_crc;     /* crc that a queued OWE_BAD_CRC will reject */
	/* messages that wait to be sent to the member, a bitmap of enum owe */
	uint8_t owes;
	/* bitmap with one bit per slot: the slot's result was offered to the member, and the member
	 * may still read the result */
	uint8_t offered;
	/* last round whose sum did not wait for the member: it was being made, or was complete,
	 * when the member's contribution or abstention arrived */
	uint64_t late_round;
	/* The member has sent HAVE or CONTRIB under this pgen. Used only in jobs with backup
	 * machines. */
	bool has_spoken;
	/* newest round whose result the member has; used only in jobs with backup machines */
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
	/* Members that have contributed or abstained (set C of docs/reference/faults.md), and
	 * members that already have the result (set H). While the slot is OPEN and `has` is empty,
	 * the members that abstained are those of C that are not in `contributors`. */
	struct member_set contributed, has;
	/* three counts of members: in the set `contributed`, in the set `has`, and in the union of
	 * the two sets */
	unsigned n_contributed, n_has, n_spoken;
	/* number of members that may still read this slot's result (seat.offered) */
	unsigned n_offered;
	unsigned n_staged;
	struct seat_list staged;
	/* Memory for the sum: space for the part's n_elems elements. The sum is also
	 * accumulated in this memory, unless part->acc holds an accumulator of a wider type. */
	struct buf *result;
	unsigned n_folded; /* number of contributions that were added to the sum so far */
	/* Only used in sums with a fixed order. n_in_order: number of staged contributions that can
	 * be added next. next_in_order: first member, in the order of member numbers, that has
	 * neither contributed nor abstained. */
	unsigned n_in_order, next_in_order;
	size_t pos;      /* number of elements that the current pass has summed */
	unsigned pass_n; /* number of staged contributions that the current pass adds */
	bool has_pass, is_last_pass;
	uint32_t crc, workers;
	/* false: `crc` is not computed yet. Only members on hosts other than the server's need
	 * `crc`. */
	bool has_crc;
	uint32_t crc_prev;      /* crc of the previous round's result, as a member reported it */
	uint16_t crc_prev_from; /* index of the member that reported crc_prev */
	/* members whose values are in the sum, or will be in it */
	struct member_set contributors;
	struct arrivals_round arrivals;
	uint64_t complete_ns; /* time when SUMMING began */
	/* Figures for the members' RESULT (T3). `last` is a member's number plus 1; 0: not known.
	 * sum_us and waited_until_ns are only known if is_timed is true. */
	bool is_timed;
	uint16_t last;
	uint32_t sum_us;
	uint64_t waited_until_ns; /* time at which the members' wait for others ended */
	/* The next five fields are used in the state DONATING. In this state, the core requests the
	 * result from the member `donor`, which already has the result. */
	uint16_t donor;
	struct offer donation;
	struct fetch *fetch;
	bool wants_fetch;
	uint64_t donor_deadline_ns;
	TAILQ_ENTRY(slot) work;    /* link in the list core->work; used if is_queued is true */
	TAILQ_ENTRY(slot) waiting; /* link in the list core->donating; used in the state DONATING */
	/* The slot's link in the list core->holding. Used when `is_holding` is true, which means
	 * that the slot is OPEN and has staged contributions. */
	TAILQ_ENTRY(slot) holding;
	/* The slot's link in the list core->cutting. Used when `is_cutting` is true, which means
	 * that the slot is OPEN, and that its round ends at cut_ns without the members that have
	 * not contributed. */
	TAILQ_ENTRY(slot) cutting;
	uint64_t cut_ns;
};

#define NO_OWNER UINT16_MAX
struct srv_part {
	struct srv_job *job;
	uint32_t tensor, index;
	size_t n_elems;
	uint32_t bytes;
	uint64_t pgen;
	/* a plan has named this partition since the last resynchronization began */
	bool is_confirmed;
	/* the only member that gets the bytes of results (O1); NO_OWNER: every member gets them */
	uint16_t owner;
	/* each round waits for all members, even in jobs with backup machines */
	bool waits_for_all;
	/* f32 accumulator for sums of f16 and bf16; used by the slot that is being summed */
	struct buf *acc;
	struct slot slots[2];
	struct srv_value *value; /* set for a partition of a value (values.h), else NULL */
	/* Members of the job under the present pgen. Only these members may send, and a round needs
	 * the contributions of all of them. */
	struct member_set live;
	uint16_t n_live;
	uint16_t n_seats; /* number of seats, including those of members that are gone */
	struct seat seats[];
};

struct srv_tensor {
	uint32_t n_parts, part_elems, n_shards;
	struct tensor_shape shape;
	/* the library made this tensor for its collectives, see CTL_OWN_TENSORS */
	bool is_of_library;
	/* array of n_parts pointers, indexed by partition; an entry is NULL if the partition is not
	 * on this thread */
	struct srv_part **parts;
};

struct srv_job_member {
	uint32_t agent; /* id of the member's agent */
	uint32_t workers;
	char host[CTL_NAME_MAX + 1];
};
struct srv_job {
	TAILQ_ENTRY(srv_job) link;
	uint32_t id, flags;
	/* View in which the job formed. If a new scheduler reuses the id for another job, the two
	 * jobs have formed in different views. */
	uint64_t formed;
	uint64_t view; /* view in which the list of members last changed */
	uint16_t n_members, n_live;
	/* number of contributions that a round need not wait for; 0: a round needs all
	 * contributions */
	uint16_t backup;
	const struct round_rule *rule; /* round_rule.h */
	uint64_t grace_ns;
	struct member_set live; /* set of the members that are not gone */
	bool has_failed, is_confirmed;
	int fail_code; /* error code of the failure; set when has_failed */
	char *fail_text;
	char name[CTL_JOB_NAME_MAX + 1];
	struct arrivals *arrivals;
	uint32_t n_tensors;
	struct srv_tensor *tensors;
	struct srv_job_member *members;
	/* member that has the worker of each rank; array of n_ranks */
	uint16_t *member_of_rank;
	uint32_t n_ranks;
};

struct srv_peer { /* a connection of an agent; stored in xconn->user */
	TAILQ_ENTRY(srv_peer) link;
	struct xconn *conn;
	struct seat_list owing;
	/* seats whose result must be offered to the agent, the most urgent first */
	struct heap results;
	/* number of results queued so far; results of the same priority are sent in the order in
	 * which they were queued */
	uint64_t result_seq;
	struct heap want; /* seats in the state WANT_READ, except those with is_parked */
	/* The peer's link in the list core->ready. Used when `is_ready` is true, which means that
	 * the peer has reads to start. */
	TAILQ_ENTRY(srv_peer) ready;
	bool is_ready;
	size_t reading_bytes;
	/* xport_send returned -EAGAIN; the transport reports when the connection is writable
	 * again */
	bool is_stuck;
	/* An offer of a result was not sent, because the send queue is long or there is no credit.
	 * The transport reports when the connection is writable again. */
	bool is_full;
};

/* A result that was offered under an older pgen. The server keeps the result's buffer as long as a
 * peer may read from the buffer (rule B3 of docs/reference/faults.md). */
struct retired_reader {
	struct srv_peer *peer;
	uint64_t round; /* round of the peer to which the result is the answer */
};
struct retired_result {
	TAILQ_ENTRY(retired_result) link;
	struct buf *buf;
	uint64_t pgen;
	uint32_t job, tensor, part;
	unsigned n_readers;
	struct retired_reader readers[];
};

/* Functions that reads.c and sums.c call to report to the files above them. */
struct srv_reports {
	/* The contribution of the seat's member is in seat->buf or seat->loan. */
	void (*contribution_read)(struct srv_core *core, struct seat *seat);
	/* The result of the slot is complete: it was summed, or read from its donor. */
	void (*result_ready)(struct srv_core *core, struct slot *slot);
	void (*donation_failed)(struct srv_core *core, struct slot *slot);
	/* A read finds no staging memory. Sums free some. */
	void (*staging_exhausted)(struct srv_core *core);
};

struct srv_core {
	const struct srv_reports *reports;
	struct srv_config cfg;
	struct srv_env env;
	/* sums: results and accumulators. The other two pools are the staging memory. Early
	 * contributions wait in the pool `early` until other contributions have been added to
	 * their sum (staging_acquire_buffer). */
	struct pool *sums, *staging, *early;
	TAILQ_HEAD(, srv_job) jobs;
	TAILQ_HEAD(, srv_peer) peers;
	TAILQ_HEAD(, srv_peer) ready;
	struct slot_list work, donating, holding, cutting;
	TAILQ_HEAD(, srv_value) values; /* values with deltas to add or a snapshot to take */
	/* time of the next check of the slots in the list `cutting`; no later than any slot's
	 * cut_ns; 0 before the first check */
	uint64_t cut_due_ns;
	struct seat_list parked;
	TAILQ_HEAD(, retired_result) retired;
	TAILQ_HEAD(, fetch) fetches, free_fetches;
	uint64_t now_ns, read_seq;
	struct srv_job *last_job; /* the job that srv_job_find found last */
	struct srv_stats stats;
	bool is_pumping;
	/* a read found no staging memory, and a running read or sum will free memory */
	bool is_starved;
};

static inline enum dtype part_dtype(const struct srv_part *part)
{
	return part->job->tensors[part->tensor].shape.dtype;
}

#ifndef SRV_STEP_VALUES /* the simulator defines smaller steps */
/* Number of values in a step. Contributions are summed step by step, and the operands of a step fit
 * in the first levels of the CPU's cache. */
#define SRV_STEP_VALUES 8192
#endif
#endif
