#ifndef BPS_AGENT_CORE_PART_H
#define BPS_AGENT_CORE_PART_H
/* A partition of a tensor, and its states in a round: see the diagram in core.h.
 *   part.c          states, timers, queues, placement
 *   part_send.c     contributions, HAVE, GOT, donations, sums in jobs with one member
 *   part_receive.c  results, the reads that fetch results, other messages from the server
 * A partition belongs to its tensor. Thread: the core's thread. */
#include <sys/queue.h>

#include "bps-agent/core/core.h"
#include "common/base/heap.h"

struct agt_link;
struct lockstep_share;

enum agt_part_state {
	PART_IDLE, /* no round of the partition is in progress */
	/* The contribution must be sent. The partition is in share->ready, job->parked or
	 * core->local, or waits for its placement or for its bytes from the devices. */
	PART_READY,
	PART_SENT, /* the contribution was sent, and the timer for the answer runs */
	/* The server answered AGAIN. The contribution is sent again when the timer expires. */
	PART_WAITING,
	/* The server has offered the sum. The partition is in link->offered until the read of the
	 * sum starts. */
	PART_OFFERED,
	PART_FETCHING, /* the sum is being read */
};

enum part_owe { OWE_HAVE = 1, OWE_DONATE = 2 };

enum part_task_kind {
	TASK_CONTRIB, /* the local sum and the crc of a contribution that is being sent */
	TASK_AGAIN,   /* the same, computed again because the server reports a wrong crc */
	TASK_LOCAL,   /* the sum of a job with one member */
};
/* Work on a partition's bytes. Another thread may run it, so it touches only this struct, the
 * tensor's constant fields, kept->summed and the memory of the partition. */
struct part_task {
	struct xport_task base;
	enum part_task_kind kind;
	enum op op;
	bool wants_crc;
	/* address to which the sum of the inputs is written; NULL: the sum is there already */
	char *sum;
};

struct agt_part {
	struct agt_tensor *tensor;
	uint32_t index;
	enum agt_part_state state;
	/* connection to the partition's server thread; NULL: the partition has no server, or the
	 * job has one member */
	struct agt_link *link;
	/* the job's share of `link`, see lockstep.h */
	struct lockstep_share *share;
	uint64_t pgen;
	/* in the state IDLE: the last complete round; in other states: the round in progress */
	uint64_t round;
	uint64_t crc_round;    /* round of the contribution whose checksum is `crc` */
	struct heap_node node; /* node in a heap of partitions to send, used in the state READY */
	/* Timer in core->timers. The timer runs in the states SENT and WAITING. In the states IDLE
	 * and READY, the timer runs after HAVE was sent, until the server confirms HAVE. */
	struct heap_node timer;
	TAILQ_ENTRY(agt_part) offered; /* entry in link->offered, used in the state OFFERED */
	TAILQ_ENTRY(agt_part) owing;   /* entry in link->owing, used if `owes` is not 0 */
	TAILQ_ENTRY(agt_part) home;    /* entry in link->parts while the partition has a link */
	/* messages that wait to be sent: bits of enum part_owe */
	uint8_t owes;
	/* the partition's bytes are included in link->inflight and job->inflight */
	bool is_charged;
	bool is_parked; /* in the state READY: the partition is in job->parked */
	/* in the state READY: the executor has not copied all of the partition's bytes to the
	 * inputs */
	bool is_staging;
	/* `task` is at the transport (A9). Meanwhile the partition is in no queue in the state
	 * READY. */
	bool is_working;
	/* Another member gets the bytes of this partition's results. For this member, a RESULT
	 * without bytes completes the round (O1). */
	bool has_other_owner;
	/* in the state FETCHING: the result of the read must be discarded, for example after a
	 * change of pgen */
	bool is_stale;
	/* the server has not acknowledged HAVE since the last change of pgen */
	bool is_have_unconfirmed;
	/* the contribution is sent again because no answer came, and the contribution's bytes do
	 * not count against the window */
	bool is_overdue;
	/* n_tries: number of sends without an answer. n_agains: number of AGAIN answers. n_unread:
	 * number of offers that could not be read. */
	uint8_t n_tries, n_agains, n_unread;
	uint8_t n_bad_crc, n_misfits;
	uint32_t crc; /* crc of the contribution */
	struct part_task task;
	/* sent_ns: time at which this round's first CONTRIB was sent; 0: not sent yet. offered_ns:
	 * time at which the server offered this round's sum. */
	uint64_t sent_ns, offered_ns;
	uint64_t donate_round;
	/* read of the sum's bytes; used in the states OFFERED and FETCHING */
	struct xport_read read;
	/* RESULT message that offers the sum; used in the states OFFERED and FETCHING */
	struct wire_msg offer;
	struct agt_kept_part *kept;
};
TAILQ_HEAD(part_list, agt_part);

/* ---- part.c ---- */
/* Set the partition's state. Only this function writes the state. The table of allowed changes is
 * in part.c. */
void part_set_state(struct agt_part *part, enum agt_part_state state, const char *why);
struct agt_core *part_core(const struct agt_part *part);
/* Initialize a zeroed partition. The tensor's shape, shards and part_elems must be set. The
 * partition continues after the round that has landed. */
void part_init(
	struct agt_part *part, struct agt_tensor *t, uint32_t index, struct agt_kept_part *kept);
size_t part_elems(const struct agt_part *part);
uint32_t part_bytes(const struct agt_part *part);
/* Return the offset of the partition's first byte in each buffer of its tensor. */
uint64_t part_byte_offset(const struct agt_part *part);
/* Return the address to which the sum of the partition's round is written. */
char *part_output_address(const struct agt_part *part);
/* Return the last round for which the partition's sum is in an out-slot. */
uint64_t part_last_round(const struct agt_part *part);
/* Convert the number of a local round to the number that messages use for this round. */
uint64_t part_wire_round(const struct agt_part *part, uint64_t round);
/* Start the tensor's next round for this partition. */
void part_start_round(struct agt_part *part);
/* Record that the executor has copied the partition's bytes to the inputs, so that the partition
 * can be sent. */
void part_staging_done(struct agt_part *part);
/* End the partition's round without a sum. A running read continues, and its result is
 * discarded. */
void part_abandon_round(struct agt_part *part, const char *why);
/* Remove the partition from every queue and stop its timer. A running read continues, and its
 * result is discarded. */
void part_stop_activity(struct agt_part *part);
/* Place the partition on the server of `link`, set the partition's pgen to `pgen`, and queue the
 * partition's messages to the server. link NULL: the partition has no server yet. */
void part_move_to_server(struct agt_part *part, struct agt_link *link, uint64_t pgen);
/* Queue the partition's messages to the server again (A3), because the connection was lost or is
 * new. */
void part_restart_sending(struct agt_part *part);
/* Handle the expiry of the partition's timer. */
void on_part_timer_expiry(struct agt_part *part);
static inline struct agt_part *part_of_task(struct xport_task *task)
{
	return (struct agt_part *)((char *)task - offsetof(struct agt_part, task));
}
/* Return the partition that contains this heap node. */
static inline struct agt_part *part_of_heap_node(struct heap_node *node)
{
	return (struct agt_part *)((char *)node - offsetof(struct agt_part, node));
}
/* Return whether the partition can be sent within its job's limit of bytes in flight. */
bool part_has_room_in_job(const struct agt_part *part);
/* Move the partition from share->ready to job->parked. The partition waits there until the job has
 * fewer bytes in flight. */
void part_park_in_job(struct agt_part *part);

/* Store that the partition's round has landed (K1), that is, the sum is complete in its out-slot.
 * Before the call, the sum, crc, workers and contributors must have been stored. */
void part_store_landed(struct agt_part *part);
/* Report to the partition's tensor that the sum is in the output. For a device tensor, report the
 * sum to the executor, too. */
void part_report_sum(struct agt_part *part);
/* Set the state READY and queue the partition. */
void part_make_ready(struct agt_part *part, const char *why);
/* Queue a READY partition, unless it must wait for its bytes or for its task. */
void part_enqueue_to_send(struct agt_part *part);
void part_dequeue(struct agt_part *part);
/* Start the partition's timer, which expires after span_ns << *count. Before it returns, the
 * function increments *count, up to a limit. */
void part_start_timer(struct agt_part *part, uint64_t span_ns, uint8_t *count);
void part_await_answer(struct agt_part *part);
/* After an offer that could not be read, wait until the contribution is sent again. The first few
 * waits of a round are short, because the server works. */
void part_await_offer(struct agt_part *part);
void part_stop_timer(struct agt_part *part);
/* Stop counting the partition's bytes as bytes in flight. */
void part_uncharge_inflight(struct agt_part *part);
/* Return whether HAVE of the last complete round is due. HAVE is due if is_have_unconfirmed is set
 * and the state is IDLE or READY. */
bool part_is_have_due(const struct agt_part *part);
/* Return whether the partition's server does not have the value yet (V1). The partition then sends
 * HOLD in place of HAVE, and no contribution. */
bool part_awaits_value(const struct agt_part *part);
/* Queue HAVE if it is due. CONTRIB(r) implies HAVE(r - 1), but CONTRIB(r) may have to wait for the
 * window. Meanwhile other members may need HAVE. */
void part_queue_have(struct agt_part *part);

/* ---- part_send.c ---- */
/* Send GOT for the last result that the server has offered. GOT reports that the agent has read the
 * result, or will not read it. Call part_send_got before the partition moves or ends its round. */
void part_send_got(struct agt_part *part);
/* Send the contribution. Errors: those of xport_send. */
int part_send_contrib(struct agt_part *part);
int part_send_owed(struct agt_part *part, enum part_owe what);
/* Compute the local sum and the crc of the contribution again, then call part_judge_crc. */
void part_compute_again(struct agt_part *part);
/* Sum the partition into the output. Used for jobs with one member. */
void part_sum_local(struct agt_part *part);
/* Handle the end of the partition's task. */
void part_task_done(struct agt_part *part);

/* ---- part_receive.c ---- */
/* Handle a message that arrived on `link`. A message for a previous placement or round is counted
 * as stale. A message of a type that no agent handles closes the connection. */
void part_receive_message(struct agt_link *link, const struct wire_msg *m);
/* Handle the end of the read of the partition's sum. status: see xport_events.read_done. */
void part_read_done(struct agt_part *part, int status);
/* Continue after the server has reported a wrong crc, and the crc was computed again. was: the crc
 * that the server received. */
void part_judge_crc(struct agt_part *part, uint32_t was);
/* Start reading the offered sum. Returns false if the connection cannot start a read now. */
bool part_start_result_read(struct agt_part *part);
#endif
