#ifndef BPS_COMMON_LOCAL_LOCAL_H
#define BPS_COMMON_LOCAL_LOCAL_H
/* Interface between a trainer and its machine's agent: messages on a SOCK_SEQPACKET UNIX socket
 * (rare: attach, declare, finish, ask why), and one control page of shared memory per trainer
 * (frequent: submissions and completions).
 *
 * The agent makes all shared memory (memfd, sealed against shrinking and growing) and passes it
 * over the socket:
 *   control   per trainer, both write: ring of submissions, one entry per tensor
 *   input     arenas per trainer, the trainer writes, the agent reads: the in-slots of its tensors
 *   output    arenas per job, the agent writes, trainers map read-only: two out-slots per tensor,
 *             slot = round & 1
 *
 * Ring: one producer (the trainer, under a mutex of its library), one consumer (the agent). A
 * submission is {tensor index, op, priority, round}. Rounds of a tensor count from 1 and a trainer
 * has at most one in flight per tensor. So an entry's `done_round` suffices: round r is complete
 * when done_round >= r. The trainer never pops anything: a restarted agent reads sq_head,
 * done_round and the ring, and continues.
 *
 * Wake-ups. Trainer to agent: store sq_tail (seq_cst), then if agent_sleeps: write the eventfd. The
 * agent sets agent_sleeps (seq_cst), checks sq_tail once more, blocks. Agent to trainer: store
 * done_round (release), add 1 to done_seq (seq_cst), then if trainer_waits != 0: futex wake of
 * done_seq. The trainer raises trainer_waits (seq_cst), checks done_round again, waits on the
 * done_seq it read before.
 *
 * No value that the agent relies on lies in memory that a trainer can write. Positions, rounds and
 * sizes are the agent's own copies; each submission is copied once, then checked. A trainer that
 * writes invalid values harms its own job only. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/local/local_gpu.h"
#include "common/wire/codec.h"

struct msghdr;

#define LOCAL_ABI          1
#define LOCAL_WHY_GPU_OPEN 1 /* round of a WHY without tensor: bps_gpu_open ended without success */
#define LOCAL_MAGIC        0x31737062u /* "bps1" */
#define LOCAL_SOCKET       "/run/bps/agent.sock"
#define LOCAL_FRAME_MAX    65536 /* bytes of one socket message */
/* Tensors per DECLARE. A DECLARE with the longest names fits into a frame, and so does a DECLARED
 * with only the longest refusals. */
#define LOCAL_DECLARE_MAX 100
#define LOCAL_FDS_MAX     250 /* memory on a GPU may be many handles */
#define LOCAL_FDS_ROOM    253 /* FD_PASSING_MAX: most descriptors of a message */
#define LOCAL_ALIGN       64

struct local_sqe {
	uint32_t tensor;   /* index of the tensor's entry */
	uint16_t priority; /* larger goes first */
	uint8_t op;        /* enum op */
	uint8_t flags;     /* must be 0 */
	uint64_t round;
};

struct local_entry { /* one per tensor, 64 bytes */
	_Atomic uint64_t
		done_round; /* agent writes, release; partner: the trainer's acquire load */
	_Atomic int32_t
		/* Status of done_round: 0 or a negative error code; sticky after a failure */
		status;
	/* Workers in the partition of done_round that has the fewest */
	_Atomic uint32_t workers;
	/* Workers in the partition of done_round that has the most */
	_Atomic uint32_t workers_most;
	uint32_t unused;
	/* Number of done_round among all completions of this trainer, from 1 */
	_Atomic uint64_t done_order;
	uint64_t reserved[4];
};

struct local_control { /* start of the control memfd */
	uint32_t magic, abi;
	uint32_t sq_entries; /* power of two */
	uint32_t tensor_entries;
	uint64_t sq_offset, entries_offset, bytes;
	_Alignas(64) _Atomic uint32_t sq_tail; /* trainer writes */
	_Alignas(64) _Atomic uint32_t sq_head; /* agent writes */
	_Atomic uint32_t agent_sleeps;
	/* Agent writes: the code of why no round that needs a server can complete now, 0: no known
	 * reason. Independent of other fields; the trainer reads it while it waits. */
	_Atomic int32_t trouble;
	/* Agent increments; the trainer's futex word */
	_Alignas(64) _Atomic uint32_t done_seq;
	/* Agent increments: the last completion's done_order. The agent does not rely on it. */
	_Atomic uint64_t n_done;
	_Alignas(64) _Atomic uint32_t trainer_waits; /* number of waiting threads */
};

#define LOCAL_SQ_MAX      (1u << 20) /* most ring entries */
#define LOCAL_TENSORS_MAX (1u << 24) /* most tensor entries */

/* Return the bytes of a control page with that many ring and tensor entries, including
 * alignment. */
size_t local_control_bytes(uint32_t sq_entries, uint32_t tensor_entries);
/* Fill in the constants of a zeroed page. */
void local_control_init(struct local_control *c, uint32_t sq_entries, uint32_t tensor_entries);
/* Check a page that the other side made: magic, abi, sizes against the mapped bytes.
 * Errors: BPS_EPROTO, BPS_EVERSION. */
int local_control_check(const struct local_control *c, size_t mapped_bytes, struct err_text *err);

/* Return the ring, which follows the control struct; the entries follow the ring. The agent
 * computes both places from its own copy of sq_entries; the trainer checks the offsets in the
 * page. */
static inline struct local_sqe *local_sq(struct local_control *c)
{
	return (struct local_sqe *)((char *)c + sizeof(*c));
}
/* Return the tensors' completion entries, which follow a ring of that size. */
struct local_entry *local_entries(struct local_control *c, uint32_t sq_entries);

/* Trainer: return how many submissions fit into the ring now. */
uint32_t local_sq_room(const struct local_control *c);
/* Trainer: append one submission. Returns 0 or -EAGAIN when the ring is full. Caller holds its
 * mutex. Does not wake the agent: call local_sq_publish once after the last. */
int local_sq_push(struct local_control *c, const struct local_sqe *e);
/* Trainer: true when the agent sleeps and its eventfd must be written. Needs no mutex. */
bool local_sq_publish(struct local_control *c);
/* Agent: copy the next submission; *head is the agent's own position. False when the ring is empty,
 * or when the trainer's tail is invalid (more than sq_entries ahead); local_sq_sleep then returns
 * true, so that the agent may block. */
bool local_sq_pop(
	struct local_control *c, uint32_t sq_entries, uint32_t *head, struct local_sqe *ret);
/* Agent, before it blocks: return true when it may, false when the ring has an entry. */
bool local_sq_sleep(struct local_control *c, uint32_t sq_entries, uint32_t head);
/* Agent: clear its sleep flag. */
void local_sq_awake(struct local_control *c);
/* Agent: mark a round of a tensor (an index below its own tensor_entries) as complete. Call
 * local_done_wake once after a batch. */
void local_done(struct local_control *c, uint32_t sq_entries, uint32_t tensor, uint64_t round,
	int status, uint32_t workers);
/* Agent, before local_done: set the number of workers in that round's partition with the most. */
void local_done_most(
	struct local_control *c, uint32_t sq_entries, uint32_t tensor, uint32_t workers);
/* Agent: wake the trainer's waiting threads, if there are any. */
void local_done_wake(struct local_control *c);
/* Trainer: block until done_seq differs from seen, at most timeout_ns; spins spin_ns first. Returns
 * 0 or -ETIMEDOUT.
 * Usage: seen = done_seq; if not complete: local_done_wait(c, seen, ...); repeat. */
int local_done_wait(struct local_control *c, uint32_t seen, uint64_t spin_ns, uint64_t timeout_ns);

/* Messages. Trainer to agent: HELLO DECLARE FINISH WHY ASK BARRIER. Agent to trainer: WELCOME JOB
 * DECLARED ARENA TEXT FINISHED PEOPLE. A frame is u16 type, u16 0, u32 seq (0, or repeated in the
 * answer), then the struct by common/wire/codec.h. */
enum local_type {
	LOCAL_HELLO = 1,
	LOCAL_WELCOME, /* + fds: control memfd, eventfd; or code and text, then the agent closes */
	/* The job is complete (code 0) or has failed; sent unasked; the first failure counts */
	LOCAL_JOB,
	LOCAL_DECLARE,
	LOCAL_DECLARED, /* answers DECLARE; the ARENA messages that it names came before */
	LOCAL_ARENA,    /* + fd */
	LOCAL_WHY,      /* asks why it waits, or why it failed */
	LOCAL_TEXT,     /* answers WHY */
	LOCAL_FINISH,
	LOCAL_FINISHED,    /* answers FINISH: every worker has finished, or the job failed */
	LOCAL_ASK,         /* asks for the workers of the job, or those in a tensor's last sum */
	LOCAL_PEOPLE,      /* answers ASK */
	LOCAL_DEVICE,      /* asks for the executor that drives this job's GPUs */
	LOCAL_DEVICE_AT,   /* answers DEVICE; + a socket to it, or code and text */
	LOCAL_BARRIER,     /* asks to wait for all other workers; no round is in flight here */
	LOCAL_PASSED,      /* answers BARRIER: all workers are there, or the job failed */
	LOCAL_ASK_TRAFFIC, /* asks for the bytes that the agent has moved */
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
	uint16_t backup;   /* same as in JOIN */
	uint32_t grace_ms;
	uint32_t max_size;
	uint32_t machine_size; /* same as local_size in JOIN */
};
struct local_welcome {
	uint32_t code; /* 0 or the positive value of an error code */
	const char *text;
	uint16_t n_types; /* the agent's LOCAL_TYPE_END: it supports smaller types */
};
struct local_job {
	uint32_t code;
	const char *text;
	uint32_t rank;
	uint32_t size;
	uint32_t local_rank; /* order of ranks on this machine */
	uint32_t local_size;
	uint64_t barrier; /* the last barrier that was passed */
	uint8_t is_new;   /* this worker joined while the job ran; others learn it from PASSED */
	uint32_t root;    /* the lowest rank that has not joined while the job ran */
};
struct local_decl {
	const char *name;
	uint8_t dtype;
	uint64_t n_elems;
	uint32_t
		/* The trainer's region at the executor where the tensor lies; 0: host memory */
		region;
	uint64_t region_offset;
};
struct local_declare {
	struct local_decl *tensors;
	uint32_t n_tensors;
};
struct local_slot {
	uint32_t code; /* 0, or the error code of this tensor's refusal */
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
	uint32_t tensor; /* UINT32_MAX: the whole job */
	uint64_t round;
};
struct local_text {
	uint32_t code; /* code of the failure, 0 when it only waits */
	const char *text;
};
struct local_none { /* for types without fields */
	uint8_t unused;
};
struct local_finished {
	uint32_t code;
	const char *text;
};

#define LOCAL_PEOPLE_MAX 200 /* per answer, which fits into a frame with the longest names */
struct local_ask {
	uint32_t tensor; /* entry index: workers in its last sum; UINT32_MAX: workers of the job */
	uint32_t first;  /* start the answer at this index */
};
/* Worker of the job, also one that is lost. */
struct local_person {
	uint32_t rank;
	uint8_t is_lost;
	uint8_t is_new;     /* joined at the last barrier with newcomers */
	uint8_t is_missing; /* for a tensor: missing in some partition of its last sum */
	const char *host;
	const char *why; /* non-empty: it was lost, and why */
};
struct local_people {
	uint64_t view; /* grows when the workers change */
	uint32_t n_all;
	struct local_person *people; /* sorted by rank */
	uint32_t n_people;
};

struct local_traffic {     /* traffic over the network of all the agent's jobs */
	uint64_t instance; /* instance of the agent; each counts from 0 */
	uint64_t sent_bytes, received_bytes;
};

struct local_barrier {
	uint64_t number; /* number of the last barrier that the worker passed, plus 1 */
};
struct local_passed {
	uint32_t code;
	const char *text;
	uint64_t barrier;
	uint32_t n_new; /* workers that were let in at this barrier */
	uint32_t root;  /* the lowest rank that had been let in before */
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

/* Return whether fd is a memfd that cannot shrink, so that its mapped memory stays valid. */
bool local_is_sealed(int fd);
const char *local_type_name(unsigned type);
/* Encode and send one frame with n_fds (<= LOCAL_FDS_MAX) descriptors; never blocks longer than
 * timeout_ms (0: not at all).
 * Errors: -EAGAIN or -ETIMEDOUT, -EMSGSIZE, -EPIPE, ... */
int local_send(
	int sock, const struct local_msg *m, const int *fds, unsigned n_fds, uint32_t timeout_ms);
/* Convert an error code of a message: a negative code, or the fallback where it is invalid. */
int local_code(uint32_t wire, int fallback);
/* Received frame with its descriptors. */
struct local_frame {
	struct local_msg msg;
	void *mem; /* same as in codec_decode */
	int fds[LOCAL_FDS_ROOM];
	unsigned n_fds;
};
/* Close all descriptors that are not negative, and free; the frame is empty then. */
void local_frame_free(struct local_frame *f);
/* Receive one frame with close-on-exec descriptors, waiting at most timeout_ms (0: not at all).
 * Whatever it returns, the caller frees *ret: the last close of a descriptor can take as long as
 * its sender likes. Returns 1, or 0 on end of file.
 * Errors: -EAGAIN or -ETIMEDOUT, -ECONNRESET, -ENOMEM; BPS_EPROTO truncated, malformed, or more
 * than LOCAL_FDS_MAX descriptors; -EMFILE this process may not open as many descriptors as came
 * along: the message is decoded all the same, and some descriptors are lost. */
int local_recv(int sock, struct local_frame *ret, uint32_t timeout_ms, struct err_text *err);
/* Receive like local_recv with timeout_ms 0, but leave the frame in the socket: a recv of one byte
 * removes it. No descriptors are received. */
int local_peek(int sock, struct local_msg *ret, void **ret_mem, struct err_text *err);
/* Decode a frame's bytes (for the fuzz target; local_recv uses it). */
int local_decode(const void *buf, size_t n_bytes, struct local_msg *ret, void **ret_mem,
	struct err_text *err);
#endif
