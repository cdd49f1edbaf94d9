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
 * submission is {tensor index, op, priority, round}. Rounds of a tensor count from 1, and a trainer
 * has at most one round in flight per tensor. So there is no second ring for completions: round r
 * is complete when done_round of the tensor's entry is >= r. A restarted agent reads sq_head,
 * done_round and the ring, and continues.
 *
 * Wake-up of the agent: the trainer stores sq_tail (seq_cst) and, if agent_sleeps is set, writes
 * the eventfd. The agent sets agent_sleeps (seq_cst), checks sq_tail once more, and blocks. Wake-up
 * of the trainer: the agent stores done_round (release), adds 1 to done_seq (seq_cst) and, if
 * trainer_waits is not 0, calls futex wake on done_seq. The trainer reads done_seq, adds 1 to
 * trainer_waits (seq_cst), checks done_round again, and waits on done_seq with the value that it
 * read.
 *
 * The agent relies on no value in memory that a trainer can write. It has its own copies of
 * positions, rounds and sizes, and copies each submission once before it checks it. So a trainer
 * that writes invalid values harms its own job only. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/local/local_gpu.h"
#include "common/wire/codec.h"
#include "common/wire/ctlmsg_cause.h"

struct msghdr;

#define LOCAL_ABI 1
/* Value of `round` in a WHY without a tensor, which asks why bps_gpu_open failed */
#define LOCAL_WHY_GPU_OPEN 1
#define LOCAL_MAGIC        0x31737062u /* the letters "bps1" */
#define LOCAL_SOCKET       "/run/bps/agent.sock"
#define LOCAL_FRAME_MAX    65536 /* most bytes of one socket message */
/* Most tensors per DECLARE. With this limit a DECLARE with the longest names fits into a frame, and
 * so does a DECLARED that refuses all tensors with the longest texts. */
#define LOCAL_DECLARE_MAX 100
/* Most descriptors of a frame. Memory of a GPU may need many, one for each of its handles */
#define LOCAL_FDS_MAX 250
/* FD_PASSING_MAX: most descriptors that the kernel passes with a message */
#define LOCAL_FDS_ROOM 253
#define LOCAL_ALIGN    64

struct local_sqe {
	uint32_t tensor;   /* index of the tensor's entry */
	uint16_t priority; /* the agent serves larger priorities first */
	uint8_t op;        /* enum op */
	uint8_t flags;     /* must be 0 */
	uint64_t round;
};

struct local_entry { /* entry of a tensor, 64 bytes */
	/* Largest completed round. The agent stores it with release. Partner of this store: the
	 * trainer's acquire load */
	_Atomic uint64_t done_round;
	/* Status of round done_round: 0 or a negative error code. After a failure the status stays
	 * negative */
	_Atomic int32_t status;
	/* Number of workers in the sum of round done_round, in the partition with the fewest
	 * workers */
	_Atomic uint32_t workers;
	/* Number of workers in the sum of round done_round, in the partition with the most
	 * workers */
	_Atomic uint32_t workers_most;
	uint32_t unused;
	/* Position of the round done_round in the order in which all rounds of this trainer
	 * completed, from 1 */
	_Atomic uint64_t done_order;
	uint64_t reserved[4];
};

/* Struct at the start of the control memfd. The ring and the tensors' entries follow it */
struct local_control {
	uint32_t magic, abi;
	uint32_t sq_entries; /* entries of the ring, a power of two */
	uint32_t tensor_entries;
	uint64_t sq_offset, entries_offset, bytes;
	_Alignas(64) _Atomic uint32_t sq_tail; /* written by the trainer */
	_Alignas(64) _Atomic uint32_t sq_head; /* written by the agent */
	_Atomic uint32_t agent_sleeps;
	/* Error code, written by the agent: the reason why rounds that need a server cannot
	 * complete now. 0: the agent knows no such reason. The trainer reads the code while it
	 * waits. Its order relative to other fields does not matter. */
	_Atomic int32_t trouble;
	/* The agent adds 1 for each batch of completions; the trainer's futex word */
	_Alignas(64) _Atomic uint32_t done_seq;
	/* Number of completions, which is also done_order of the last completion. Only the agent
	 * writes it */
	_Atomic uint64_t n_done;
	/* Number of the trainer's threads that wait on done_seq */
	_Alignas(64) _Atomic uint32_t trainer_waits;
};

#define LOCAL_SQ_MAX      (1u << 20) /* most ring entries */
#define LOCAL_TENSORS_MAX (1u << 24) /* most tensor entries */

/* Return the bytes of a control page with that many ring and tensor entries, including
 * alignment. */
size_t local_control_bytes(uint32_t sq_entries, uint32_t tensor_entries);
/* Fill in the constant fields of a zeroed page. */
void local_control_init(struct local_control *c, uint32_t sq_entries, uint32_t tensor_entries);
/* Check the control page of the other process: magic, ABI version, and sizes against the mapped
 * bytes.
 * Errors: BPS_EPROTO, BPS_EVERSION. */
int local_control_check(const struct local_control *c, size_t mapped_bytes, struct err_text *err);

/* Return the ring, which follows the control struct. The tensors' entries follow the ring. The
 * agent computes both addresses from its own copy of sq_entries; the trainer checks the offsets in
 * the page (local_control_check). */
static inline struct local_sqe *local_sq(struct local_control *c)
{
	return (struct local_sqe *)((char *)c + sizeof(*c));
}
/* Return the tensors' entries, which follow a ring of sq_entries. */
struct local_entry *local_entries(struct local_control *c, uint32_t sq_entries);

/* Trainer: return how many submissions fit into the ring now. */
uint32_t local_sq_room(const struct local_control *c);
/* Trainer: append one submission. Returns 0, or -EAGAIN when the ring is full. The caller holds the
 * library's mutex. This does not wake the agent: call local_sq_publish once after the last
 * submission. */
int local_sq_push(struct local_control *c, const struct local_sqe *e);
/* Trainer: return whether the agent sleeps, so that the caller must write its eventfd. Needs no
 * mutex. */
bool local_sq_publish(struct local_control *c);
/* Agent: copy the next submission. *head is the agent's own position. Returns false when the ring
 * is empty, or when the trainer's tail is invalid (more than sq_entries ahead of *head). In both
 * cases local_sq_sleep returns true, so that the agent may block. */
bool local_sq_pop(
	struct local_control *c, uint32_t sq_entries, uint32_t *head, struct local_sqe *ret);
/* Agent, before it blocks: set its sleep flag and return true. Returns false, with the flag
 * cleared, when the ring has an entry. */
bool local_sq_sleep(struct local_control *c, uint32_t sq_entries, uint32_t head);
/* Agent: clear its sleep flag. */
void local_sq_awake(struct local_control *c);
/* Agent: mark a round of a tensor as complete. tensor: index of its entry, checked by the caller.
 * Call local_done_wake once after a batch. */
void local_done(struct local_control *c, uint32_t sq_entries, uint32_t tensor, uint64_t round,
	int status, uint32_t workers);
/* Agent: set workers_most of a tensor's entry. Call it before local_done. */
void local_done_most(
	struct local_control *c, uint32_t sq_entries, uint32_t tensor, uint32_t workers);
/* Agent: wake the trainer's waiting threads, if there are any. */
void local_done_wake(struct local_control *c);
/* Trainer: block until done_seq differs from `seen`, at most for timeout_ns. Polls for spin_ns
 * first. Returns 0 (also when done_seq may be unchanged) or -ETIMEDOUT.
 * Usage: seen = done_seq; if not complete: local_done_wait(c, seen, ...); repeat. */
int local_done_wait(struct local_control *c, uint32_t seen, uint64_t spin_ns, uint64_t timeout_ns);

/* Messages. Trainer to agent: HELLO DECLARE FINISH WHY ASK BARRIER. Agent to trainer: WELCOME JOB
 * DECLARED ARENA TEXT FINISHED PEOPLE. A frame is u16 type, u16 0, u32 seq, then the struct,
 * encoded by common/wire/codec.h. An answer has the seq of its request; seq may be 0. */
enum local_type {
	LOCAL_HELLO = 1,
	/* Answers HELLO. Carries the descriptors of the control memfd and the eventfd; or code and
	 * text of an error, after which the agent closes the socket */
	LOCAL_WELCOME,
	/* The agent reports, without a request, that the job is complete (code 0) or has failed.
	 * Only the first failure counts */
	LOCAL_JOB,
	LOCAL_DECLARE,
	LOCAL_DECLARED, /* answers DECLARE; the ARENA messages for its arenas are sent before */
	LOCAL_ARENA,    /* carries the descriptor of an arena's memfd */
	LOCAL_WHY,      /* asks why a round or the job waits, or why it failed */
	LOCAL_TEXT,     /* answers WHY */
	LOCAL_FINISH,
	LOCAL_FINISHED, /* answers FINISH: every worker has finished, or the job failed */
	/* Asks for the workers of the job, or for those in the last sum of a tensor */
	LOCAL_ASK,
	LOCAL_PEOPLE, /* answers ASK */
	LOCAL_DEVICE, /* asks for the executor that drives this job's GPUs */
	/* Answers DEVICE. Carries a socket to the executor, or code and text of an error */
	LOCAL_DEVICE_AT,
	LOCAL_BARRIER,     /* this worker has no round in flight, and waits for all other workers */
	LOCAL_PASSED,      /* answers BARRIER: all workers have sent BARRIER, or the job failed */
	LOCAL_ASK_TRAFFIC, /* asks for the bytes that the agent has sent and received */
	LOCAL_TRAFFIC,     /* answers ASK_TRAFFIC */
	LOCAL_TYPE_END
};

struct local_hello {
	uint16_t abi;
	const char *version;
	const char *job;
	uint32_t rank; /* the worker's rank; UINT32_MAX: the scheduler assigns a rank */
	uint32_t size;
	uint32_t flags; /* enum job_flags */
	uint32_t part_bytes;
	struct blob token; /* the job's token, CTL_TOKEN_BYTES long; empty: the job has none */
	uint16_t backup;   /* backup, grace_ms and max_size: as in struct ctl_join */
	uint32_t grace_ms;
	uint32_t max_size;
	uint32_t machine_size; /* same as local_size in struct ctl_join */
};
struct local_welcome {
	uint32_t code; /* 0 or the positive value of an error code */
	const char *text;
	uint16_t n_types; /* the agent's LOCAL_TYPE_END: the agent supports the types below it */
};
struct local_job {
	uint32_t code;
	const char *text;
	uint32_t rank;
	uint32_t size;
	uint32_t local_rank; /* number of this worker among the ranks of this machine, from 0 */
	uint32_t local_size;
	uint64_t barrier; /* number of the last barrier that the job has passed */
	/* 1: this worker joined while the job ran. The other workers learn that from PASSED */
	uint8_t is_new;
	uint32_t root; /* the lowest rank of the workers that did not join while the job ran */
	/* Cause of the failure that `code` reports; the same in the other messages */
	struct ctl_cause cause;
};
struct local_decl {
	const char *name;
	uint8_t dtype;
	uint64_t n_elems;
	/* Region of the executor in which the tensor lies; 0: the tensor is in host
	 * memory */
	uint32_t region;
	uint64_t region_offset;
};
struct local_declare {
	struct local_decl *tensors;
	uint32_t n_tensors;
};
struct local_slot {
	uint32_t code; /* 0, or the error code when the agent refuses this tensor */
	const char *text;
	uint32_t tensor; /* index of the tensor's entry in the control page */
	uint32_t in_arena, out_arena;
	uint64_t in_offset;
	uint64_t out_offset[2]; /* index: round & 1; encoded as two u64 fields */
	struct ctl_cause cause;
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
	uint32_t code; /* error code of the failure; 0: no failure, the round or job only waits */
	const char *text;
	struct ctl_cause cause;
};
struct local_none { /* for messages without fields, which need at least one */
	uint8_t unused;
};
struct local_finished {
	uint32_t code;
	const char *text;
	struct ctl_cause cause;
};

/* Most workers per answer; with the longest names they fit into a frame */
#define LOCAL_PEOPLE_MAX 200
struct local_ask {
	/* Index of a tensor's entry: asks for the workers in the last sum of that tensor.
	 * UINT32_MAX: asks for the workers of the job */
	uint32_t tensor;
	uint32_t first; /* index of the first worker in the answer */
};
/* Worker of the job, or a worker that the job has lost. */
struct local_person {
	uint32_t rank;
	uint8_t is_lost;
	uint8_t is_new; /* the worker was let in at the last barrier with newcomers */
	/* Answer for a tensor: the worker's gradient is missing in the last sum of a partition */
	uint8_t is_missing;
	const char *host;
	const char *why; /* non-empty: the worker was lost, for this reason */
};
struct local_people {
	uint64_t view; /* larger after each change of the workers */
	uint32_t n_all;
	struct local_person *people; /* sorted by rank */
	uint32_t n_people;
};

struct local_traffic {     /* bytes over the network, for all jobs of the agent */
	uint64_t instance; /* instance of the agent; a restarted agent counts from 0 again */
	uint64_t sent_bytes, received_bytes;
};

struct local_barrier {
	/* Number of this barrier: the number of the last barrier that the worker passed, plus 1 */
	uint64_t number;
};
struct local_passed {
	uint32_t code;
	const char *text;
	uint64_t barrier;
	uint32_t n_new; /* workers that were let in at this barrier */
	/* The lowest rank of the workers that were in the job before this barrier */
	uint32_t root;
	struct ctl_cause cause;
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
/* Encode and send one frame with n_fds (<= LOCAL_FDS_MAX) descriptors. Blocks at most timeout_ms;
 * 0: not at all.
 * Errors: -EAGAIN or -ETIMEDOUT; -EMSGSIZE; another -errno of sendmsg(2), such as -EPIPE. */
int local_send(
	int sock, const struct local_msg *m, const int *fds, unsigned n_fds, uint32_t timeout_ms);
/* Convert the positive error code in a message to the negative code. Returns fallback when the code
 * is invalid. */
int local_code(uint32_t wire, int fallback);
/* Received frame with its descriptors. Free it with local_frame_free. */
struct local_frame {
	struct local_msg msg;
	void *mem; /* memory of msg, as from codec_decode */
	int fds[LOCAL_FDS_ROOM];
	unsigned n_fds;
};
/* Free the memory of a frame, and make the frame empty. Closes those descriptors in it that are not
 * negative. */
void local_frame_free(struct local_frame *f);
/* Receive one frame with its descriptors, which are close-on-exec. Waits at most timeout_ms; 0: not
 * at all. The caller must free *ret also after an error. The caller may free it on another thread,
 * because the sender of a descriptor can make the close of that descriptor block. Returns 1, or 0
 * when the peer has closed the socket.
 * Errors: -EAGAIN or -ETIMEDOUT, -ECONNRESET, -ENOMEM; BPS_EPROTO: the frame is truncated or
 * malformed, or has more than LOCAL_FDS_MAX descriptors; -EMFILE: this process has reached its
 * limit of descriptors. After -EMFILE the message is decoded, but some of its descriptors are
 * lost. */
int local_recv(int sock, struct local_frame *ret, uint32_t timeout_ms, struct err_text *err);
/* Decode the next frame, as local_recv with timeout_ms 0, but leave it in the socket. No
 * descriptors are received. To remove the frame, receive one byte with recv(2). */
int local_peek(int sock, struct local_msg *ret, void **ret_mem, struct err_text *err);
/* Decode the bytes of a frame. local_recv and the fuzz target use it. */
int local_decode(const void *buf, size_t n_bytes, struct local_msg *ret, void **ret_mem,
	struct err_text *err);
#endif
