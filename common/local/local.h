#ifndef BPS_COMMON_LOCAL_LOCAL_H
#define BPS_COMMON_LOCAL_LOCAL_H
/* What a trainer and its machine's agent share: messages on a SOCK_SEQPACKET UNIX socket (rare:
 * attach, declare, finish, ask why), and one control page of shared memory per trainer (hot:
 * submissions and completions).
 *
 * The agent makes all shared memory (memfd, sealed against shrinking and growing) and passes it
 * over the socket:
 *   control   per trainer, both write: ring of submissions, one entry per tensor
 *   input     arenas per trainer, the trainer writes, the agent reads: the in-slots of its tensors
 *   output    arenas per job, the agent writes, trainers map read-only: two out-slots per tensor, slot = round & 1
 *
 * Ring: one producer (the trainer, under a mutex of its library), one consumer (the agent). A
 * submission is {tensor index, op, priority, round}. Rounds of a tensor count from 1 and a trainer
 * has at most one in flight per tensor, so an entry's `done_round` says all: round r is complete
 * when done_round >= r. Nothing is ever popped by the trainer: a restarted agent reads sq_head,
 * done_round and the ring, and goes on.
 *
 * Wake-ups. Trainer to agent: store sq_tail (seq_cst), then if agent_sleeps: write the eventfd. The
 * agent sets agent_sleeps (seq_cst), looks at sq_tail once more, blocks. Agent to trainer: store
 * done_round (release), add 1 to done_seq (seq_cst), then if trainer_waits != 0: futex wake of
 * done_seq. The trainer raises trainer_waits (seq_cst), checks done_round again, waits on the
 * done_seq it read before.
 *
 * Nothing the agent relies on lies in memory a trainer can write: positions, rounds and sizes are
 * the agent's own copies; each submission is copied once, then checked. A trainer that writes
 * nonsense harms its own job only. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/local/local_gpu.h"
#include "common/wire/codec.h"

struct msghdr;

#define LOCAL_ABI          1
#define LOCAL_WHY_GPU_OPEN 1 /* the round of a WHY of no tensor: bps_gpu_open was given up */
#define LOCAL_MAGIC        0x31737062u /* "bps1" */
#define LOCAL_SOCKET       "/run/bps/agent.sock"
#define LOCAL_FRAME_MAX    65536 /* bytes of one socket message */
/* Tensors per DECLARE: neither it with the longest names nor a DECLARED of nothing but the longest
 * refusals outgrows a frame. */
#define LOCAL_DECLARE_MAX 100
#define LOCAL_FDS_MAX     250 /* memory on a GPU may be many handles */
#define LOCAL_FDS_ROOM    253 /* FD_PASSING_MAX: most that a message can bring */
#define LOCAL_ALIGN       64

struct local_sqe {
	uint32_t tensor;   /* index of the tensor's entry */
	uint16_t priority; /* larger goes first */
	uint8_t op;        /* enum op */
	uint8_t flags;     /* 0 */
	uint64_t round;
};

struct local_entry { /* one per tensor, 64 bytes */
	_Atomic uint64_t
		done_round; /* agent writes, release; partner: the trainer's acquire load */
	_Atomic int32_t
		status; /* of done_round: 0 or a negative error code; sticky after a failure */
	_Atomic uint32_t workers;      /* behind the partition of done_round that has the fewest */
	_Atomic uint32_t workers_most; /* behind the one that has the most */
	uint32_t unused;
	uint64_t reserved[5];
};

struct local_control { /* start of the control memfd */
	uint32_t magic, abi;
	uint32_t sq_entries; /* power of two */
	uint32_t tensor_entries;
	uint64_t sq_offset, entries_offset, bytes;
	_Alignas(64) _Atomic uint32_t sq_tail; /* trainer writes */
	_Alignas(64) _Atomic uint32_t sq_head; /* agent writes */
	_Atomic uint32_t agent_sleeps;
	/* Agent writes: the code of why no round that needs a server can complete at present, 0:
	 * nothing is known. Alone; the trainer looks while it waits. */
	_Atomic int32_t trouble;
	_Alignas(64) _Atomic uint32_t done_seq;      /* agent adds; the trainer's futex word */
	_Alignas(64) _Atomic uint32_t trainer_waits; /* number of waiting threads */
};

#define LOCAL_SQ_MAX      (1u << 20) /* most ring entries */
#define LOCAL_TENSORS_MAX (1u << 24) /* most tensor entries */

/* Bytes of a control page with that many ring and tensor entries; offsets as they must be. */
size_t local_control_bytes(uint32_t sq_entries, uint32_t tensor_entries);
/* Fill in a zeroed page's constants. */
void local_control_init(struct local_control *c, uint32_t sq_entries, uint32_t tensor_entries);
/* Check a page that the other side made: magic, abi, sizes against the mapped bytes. Errors:
 * BPS_EPROTO, BPS_EVERSION. */
int local_control_check(const struct local_control *c, size_t mapped_bytes, struct err_text *err);

/* The ring follows the control struct, the entries follow the ring. The agent computes both places
 * from its own copy of sq_entries: the offsets in the page are for the trainer to check. */
static inline struct local_sqe *local_sq(struct local_control *c)
{
	return (struct local_sqe *)((char *)c + sizeof(*c));
}
/* The tensors' completion entries behind a ring of that size. */
struct local_entry *local_entries(struct local_control *c, uint32_t sq_entries);

/* Trainer: submissions that fit into the ring now. */
uint32_t local_sq_room(const struct local_control *c);
/* Trainer: append one submission. Returns 0 or -EAGAIN when the ring is full. Caller holds its
 * mutex. Does not wake: call local_sq_publish once after the last. */
int local_sq_push(struct local_control *c, const struct local_sqe *e);
/* Trainer: true when the agent sleeps and its eventfd must be written. Needs no mutex. */
bool local_sq_publish(struct local_control *c);
/* Agent: copy the next submission; *head is the agent's own position. False when empty, or when the
 * trainer's tail is nonsense (more than sq_entries ahead); local_sq_sleep then says that the agent
 * may block. */
bool local_sq_pop(
	struct local_control *c, uint32_t sq_entries, uint32_t *head, struct local_sqe *ret);
/* Agent: about to block; true when it may, false when there is something in the ring. */
bool local_sq_sleep(struct local_control *c, uint32_t sq_entries, uint32_t head);
/* Agent: it does not sleep (any more). */
void local_sq_awake(struct local_control *c);
/* Agent: round of a tensor (an index below its own tensor_entries) is complete. Follow a batch with
 * one local_done_wake. */
void local_done(struct local_control *c, uint32_t sq_entries, uint32_t tensor, uint64_t round,
	int status, uint32_t workers);
/* Agent, before local_done: workers behind that round's partition that has the most. */
void local_done_most(
	struct local_control *c, uint32_t sq_entries, uint32_t tensor, uint32_t workers);
/* Agent: wake the trainer's waiting threads, if there are any. */
void local_done_wake(struct local_control *c);
/* Trainer: block until done_seq moves from seen, at most timeout_ns; spins spin_ns first. 0 or
 * -ETIMEDOUT.
 * Usage: seen = done_seq; if not complete: local_done_wait(c, seen, ...); repeat. */
int local_done_wait(struct local_control *c, uint32_t seen, uint64_t spin_ns, uint64_t timeout_ns);

/* Messages. Trainer to agent: HELLO DECLARE FINISH WHY ASK BARRIER. Agent to trainer: WELCOME JOB
 * DECLARED ARENA TEXT FINISHED PEOPLE. A frame is u16 type, u16 0, u32 seq (0, or echoed in the
 * answer), then the struct by common/wire/codec.h. */
enum local_type {
	LOCAL_HELLO = 1,
	LOCAL_WELCOME, /* + fds: control memfd, eventfd; or code and text, then the agent closes */
	LOCAL_JOB, /* the job is complete (code 0) or has failed; unasked; the first failure counts */
	LOCAL_DECLARE,
	LOCAL_DECLARED, /* answers DECLARE; the ARENA messages it names came before */
	LOCAL_ARENA,    /* + fd */
	LOCAL_WHY,      /* why does it wait, or why did it fail? */
	LOCAL_TEXT,     /* answers WHY */
	LOCAL_FINISH,
	LOCAL_FINISHED,    /* answers FINISH: every worker has finished, or the job failed */
	LOCAL_ASK,         /* who is in the job, or behind a tensor's last sum? */
	LOCAL_PEOPLE,      /* answers ASK */
	LOCAL_DEVICE,      /* where is the executor that drives this job's GPUs? */
	LOCAL_DEVICE_AT,   /* answers DEVICE; + a socket to it, or code and text */
	LOCAL_BARRIER,     /* nothing is in flight here: wait for all others */
	LOCAL_PASSED,      /* answers BARRIER: so it is with all of them, or the job failed */
	LOCAL_ASK_TRAFFIC, /* what has the agent moved? */
	LOCAL_TRAFFIC,     /* answers ASK_TRAFFIC */
	LOCAL_TYPE_END
};

struct local_hello {
	uint16_t abi;
	const char *version;
	const char *job;
	uint32_t rank; /* UINT32_MAX: assign */
	uint32_t size;
	uint32_t flags; /* enum job_flags */
	uint32_t part_bytes;
	struct blob token; /* CTL_TOKEN_BYTES; empty: the job has none */
	uint16_t backup;   /* as in JOIN */
	uint32_t grace_ms;
	uint32_t max_size;
	uint32_t machine_size; /* JOIN's local_size */
};
struct local_welcome {
	uint32_t code; /* 0 or the positive value of an error code */
	const char *text;
	uint16_t n_types; /* the agent's LOCAL_TYPE_END: it knows smaller ones */
};
struct local_job {
	uint32_t code;
	const char *text;
	uint32_t rank;
	uint32_t size;
	uint32_t local_rank; /* order of ranks on this machine */
	uint32_t local_size;
	uint64_t barrier; /* the last one that was passed */
	uint8_t is_new;   /* it has joined while the job ran: as PASSED says to the others */
	uint32_t root;    /* the lowest rank that has not */
};
struct local_decl {
	const char *name;
	uint8_t dtype;
	uint64_t n_elems;
	uint32_t
		region; /* of the trainer's with the executor, where the tensor lies; 0: host memory */
	uint64_t region_offset;
};
struct local_declare {
	struct local_decl *tensors;
	uint32_t n_tensors;
};
struct local_slot {
	uint32_t code; /* 0, or why this tensor was refused */
	const char *text;
	uint32_t tensor; /* entry index */
	uint32_t in_arena, out_arena;
	uint64_t in_offset;
	uint64_t out_offset[2]; /* encoded as two u64 fields */
};
struct local_declared {
	struct local_slot *slots; /* in the order of DECLARE */
	uint32_t n_slots;
};
struct local_arena {
	uint32_t id;
	uint8_t is_writable;
	uint64_t bytes;
};
struct local_why {
	uint32_t tensor; /* UINT32_MAX: the job */
	uint64_t round;
};
struct local_text {
	uint32_t code; /* of the failure, 0 when it only waits */
	const char *text;
};
struct local_none { /* of types without fields */
	uint8_t unused;
};
struct local_finished {
	uint32_t code;
	const char *text;
};

#define LOCAL_PEOPLE_MAX 200 /* in one answer, which fits into a frame with the longest names */
struct local_ask {
	uint32_t tensor; /* entry index: how they stand to its last sum; UINT32_MAX: to the job */
	uint32_t first;  /* answer from the n-th on */
};
/* A worker of the job, also one that is lost. */
struct local_person {
	uint32_t rank;
	uint8_t is_lost;
	uint8_t is_new;     /* it has joined last */
	uint8_t is_missing; /* asked of a tensor: not behind every partition of its last sum */
	const char *host;
	const char *why; /* it was lost */
};
struct local_people {
	uint64_t view; /* grows when they change */
	uint32_t n_all;
	struct local_person *people; /* by rank */
	uint32_t n_people;
};

struct local_traffic {     /* over the network, of all the agent's jobs */
	uint64_t instance; /* of the agent: each counts from 0 */
	uint64_t sent_bytes, received_bytes;
};

struct local_barrier {
	uint64_t number; /* the last one that it passed, and 1 */
};
struct local_passed {
	uint32_t code;
	const char *text;
	uint64_t barrier;
	uint32_t n_new; /* workers that were let in at it */
	uint32_t root;  /* the lowest rank that was not */
};

struct local_msg {
	uint16_t type;
	uint32_t seq;
	union {
		struct local_hello hello;
		struct local_welcome welcome;
		struct local_job job;
		struct local_declare declare;
		struct local_declared declared;
		struct local_arena arena;
		struct local_why why;
		struct local_text text;
		struct local_none none;
		struct local_finished finished;
		struct local_ask ask;
		struct local_people people;
		struct local_text device_at;
		struct gpu_hello gpu_hello;
		struct gpu_welcome gpu_welcome;
		struct gpu_alloc gpu_alloc;
		struct gpu_import gpu_import;
		struct gpu_region gpu_region;
		struct gpu_release gpu_release;
		struct gpu_text gpu_text;
		struct gpu_start gpu_start;
		struct gpu_trainer gpu_trainer;
		struct gpu_route gpu_route;
		struct gpu_arena gpu_arena;
		struct local_barrier barrier;
		struct local_passed passed;
		struct local_traffic traffic;
	};
};

/* A memfd that cannot become smaller, so that what is mapped of it stays there. */
bool local_is_sealed(int fd);
const char *local_type_name(unsigned type);
/* Encode and send one frame with n_fds (<= LOCAL_FDS_MAX) descriptors; never blocks longer than
 * timeout_ms (0: not at all). Errors: -EAGAIN or -ETIMEDOUT, -EMSGSIZE, -EPIPE, ... */
int local_send(
	int sock, const struct local_msg *m, const int *fds, unsigned n_fds, uint32_t timeout_ms);
/* An error code of a message: a negative one, or the fallback where it makes no sense. */
int local_code(uint32_t wire, int fallback);
/* A received frame and what came with it. */
struct local_frame {
	struct local_msg msg;
	void *mem; /* as codec_decode */
	int fds[LOCAL_FDS_ROOM];
	unsigned n_fds;
};
/* Close all descriptors that are not negative, and free; the frame is empty then. */
void local_frame_free(struct local_frame *f);
/* Receive one frame with close-on-exec descriptors, waiting at most timeout_ms (0: not at all).
 * Returns 1, or 0 on end of file. Errors: -EAGAIN or -ETIMEDOUT, -ECONNRESET, -ENOMEM, BPS_EPROTO
 * (truncated, malformed, more than LOCAL_FDS_MAX descriptors), -EMFILE this process may not open as
 * many descriptors as came along: the message is decoded all the same, and some are lost. Whatever it returns, the caller frees
 * *ret: the last close of a descriptor can take as long as its sender likes. */
int local_recv(int sock, struct local_frame *ret, uint32_t timeout_ms, struct err_text *err);
/* As local_recv with timeout_ms 0, but the frame stays in the socket: a recv of one byte takes it
 * out. It brings no descriptors. */
int local_peek(int sock, struct local_msg *ret, void **ret_mem, struct err_text *err);
/* Decode a frame's bytes (for the fuzz target; local_recv uses it). */
int local_decode(const void *buf, size_t n_bytes, struct local_msg *ret, void **ret_mem,
	struct err_text *err);
#endif
