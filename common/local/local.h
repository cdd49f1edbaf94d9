#ifndef BPS_COMMON_LOCAL_LOCAL_H
#define BPS_COMMON_LOCAL_LOCAL_H
/* Interface between a trainer and its machine's agent. Rare events (attach, declare, finish, ask
 * for a reason) use messages on a SOCK_SEQPACKET UNIX socket. Frequent events (submissions and
 * completions) use one control page of shared memory per trainer.
 *
 * The agent creates all shared memory (memfds that are sealed against shrinking and growing) and
 * passes the descriptors over the socket:
 *   control   one page per trainer, written by the trainer and by the agent: a ring of submissions,
 *             and an array with one entry per tensor
 *   input     arenas of a trainer, written by the trainer, read by the agent: one in-slot per
 *             tensor
 *   output    arenas of a job, written by the agent, mapped read-only by the trainers: two
 *             out-slots per tensor, slot = round & 1
 *
 * The ring has one producer (the trainer, under a mutex of its library) and one consumer (the
 * agent). A submission is {tensor index, op, priority, round}. The rounds of a tensor are numbered
 * from 1, and a trainer has at most one round in flight per tensor. Round r is complete when
 * done_round of the tensor's entry is >= r, so completions need no ring. A restarted agent reads
 * sq_head, done_round and the ring, and continues.
 *
 * Wake-up of the agent: the trainer stores sq_tail (seq_cst) and, if agent_sleeps is set, writes
 * the eventfd. The agent sets agent_sleeps (seq_cst), checks sq_tail once more, and blocks. Wake-up
 * of the trainer: the agent stores done_round (release), adds 1 to done_seq (seq_cst) and, if
 * trainer_waits is not 0, calls futex wake on done_seq. The trainer reads done_seq, adds 1 to
 * trainer_waits (seq_cst), checks done_round again, and waits on done_seq with the value that it
 * read.
 *
 * The agent does not trust memory that a trainer can write. The agent has its own copies of
 * positions, rounds and sizes. The agent copies each submission exactly once, and then checks and
 * uses only the copy. So a trainer that writes invalid values harms only its own job. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/local/local_gpu.h"
#include "common/wire/codec.h"
#include "common/wire/ctlmsg_cause.h"
#include "common/wire/shape_layout.h"

struct msghdr;

#define LOCAL_ABI 4
/* Value of local_why.round in a WHY without a tensor, to ask for the reason why bps_gpu_open
 * failed */
#define LOCAL_WHY_GPU_OPEN 1
#define LOCAL_MAGIC        0x31737062u /* the letters "bps1" */
#define LOCAL_SOCKET       "/run/bps/agent.sock"
#define LOCAL_FRAME_MAX    65536 /* largest size of one socket message in bytes */
/* Largest number of tensors per DECLARE message. With this limit, a DECLARE message with the
 * longest names fits into a frame. The answer, a DECLARED message, also fits into a frame, even if
 * the answer refuses every tensor and each refusal has the longest text. */
#define LOCAL_DECLARE_MAX 100
/* Largest number of descriptors in a frame. Memory of a GPU may need many descriptors, one for each
 * of its handles */
#define LOCAL_FDS_MAX 250
/* Value of FD_PASSING_MAX, the largest number of descriptors that the kernel passes with a
 * message */
#define LOCAL_FDS_ROOM 253
#define LOCAL_ALIGN    64

enum local_sqe_flags {
	/* The worker takes part in the round and adds nothing. The agent does not read its input.
	 * Not for tensors in device memory */
	LOCAL_ABSTAINS = 1 << 0,
};

struct local_sqe {
	uint32_t tensor;   /* index of the tensor's entry */
	uint16_t priority; /* the agent serves larger priorities first */
	uint8_t op;        /* operation, a value of enum op */
	uint8_t flags;     /* enum local_sqe_flags; the other bits are 0 */
	uint64_t round;
};

struct local_entry { /* entry of a tensor, 64 bytes */
	/* Largest completed round. The agent stores this field with release, and the trainer loads
	 * it with acquire */
	_Atomic uint64_t done_round;
	/* Status of round done_round: 0 or a negative error code. After a failure the status stays
	 * negative */
	_Atomic int32_t status;
	/* Smallest number of workers in a partition's sum of round done_round */
	_Atomic uint32_t workers;
	/* Largest number of workers in a partition's sum of round done_round */
	_Atomic uint32_t workers_most;
	/* Number of the trainer's threads that wait for this tensor. For a tensor in device memory:
	 * 1 if a stream waits for the last submitted round. Written only by the trainer */
	_Atomic uint32_t waits;
	/* Position of round done_round among all completed rounds of this trainer, in the order of
	 * completion, from 1 */
	_Atomic uint64_t done_order;
	/* 1 if the worker abstained from round done_round, or if a partition's sum lacks the values
	 * of the worker's machine */
	_Atomic uint32_t is_mine_missing;
	/* 1 if a partition of round done_round did not wait for the worker's machine */
	_Atomic uint32_t is_late;
	uint64_t reserved[3];
};

/* Struct at the start of the control memfd. The ring and the tensors' entries follow the struct */
struct local_control {
	uint32_t magic, abi;
	uint32_t sq_entries; /* number of ring entries, a power of two */
	uint32_t tensor_entries;
	uint64_t sq_offset, entries_offset, bytes;
	/* Position of the next free ring entry. The trainer writes sq_tail */
	_Alignas(64) _Atomic uint32_t sq_tail;
	/* Position of the oldest ring entry. The agent writes sq_head */
	_Alignas(64) _Atomic uint32_t sq_head;
	_Atomic uint32_t agent_sleeps;
	/* Error code with which the agent reports why rounds that need a server cannot complete
	 * now, or 0 if no reason is known. The trainer reads the code while the trainer waits. No
	 * memory order relative to other fields is needed. */
	_Atomic int32_t trouble;
	/* Futex word of the trainer. The agent adds 1 for each batch of completions */
	_Alignas(64) _Atomic uint32_t done_seq;
	/* Number of completions, equal to done_order of the last completion. Written only by the
	 * agent */
	_Atomic uint64_t n_done;
	/* Number of the trainer's threads that wait on done_seq */
	_Alignas(64) _Atomic uint32_t trainer_waits;
	/* Written by the trainer. waited_ns: time in which at least one of the trainer's calls
	 * waited for a round, up to the end of the last wait. wait_began_ns: when the wait in
	 * progress began, by CLOCK_MONOTONIC; 0: no call waits. The agent only reports these
	 * times. */
	_Atomic uint64_t waited_ns, wait_began_ns;
};

#define LOCAL_SQ_MAX      (1u << 20) /* largest number of ring entries */
#define LOCAL_TENSORS_MAX (1u << 24) /* largest number of tensor entries */

/* Return the size in bytes of a control page with sq_entries ring entries and tensor_entries tensor
 * entries, including alignment. */
size_t local_control_bytes(uint32_t sq_entries, uint32_t tensor_entries);
/* Fill in the constant fields of a zeroed page. */
void local_control_init(struct local_control *c, uint32_t sq_entries, uint32_t tensor_entries);
/* Check the control page of the other process: magic number, ABI version, and whether the sizes fit
 * the mapped bytes.
 * Errors: BPS_EPROTO, BPS_EVERSION. */
int local_control_check(const struct local_control *c, size_t mapped_bytes, struct err_text *err);

/* Return the ring, which follows the control struct. The tensors' entries follow the ring. The
 * agent computes both addresses from its own copy of sq_entries; the trainer checks the offsets in
 * the page (local_control_check). */
static inline struct local_sqe *local_sq(struct local_control *c)
{
	return (struct local_sqe *)((char *)c + sizeof(*c));
}
/* Return the array of tensor entries, which lies after the ring. sq_entries: number of ring
 * entries. */
struct local_entry *local_tensor_entries(struct local_control *c, uint32_t sq_entries);

/* Trainer: return how many submissions fit into the ring now. */
uint32_t local_sq_room(const struct local_control *c);
/* Trainer: append one submission. Returns 0, or -EAGAIN when the ring is full. The caller holds the
 * library's mutex. The function does not wake the agent, so call local_sq_publish once after the
 * last submission. */
int local_sq_push(struct local_control *c, const struct local_sqe *e);
/* Trainer: make the appended submissions visible to an agent that is about to sleep. Returns true
 * if the agent sleeps; the caller must then write the agent's eventfd. Needs no mutex. */
bool local_sq_publish(struct local_control *c);
/* Agent: copy the next submission, and advance *head, the agent's own position. Returns false when
 * the ring is empty, or when the trainer's tail is invalid (more than sq_entries ahead of *head).
 * In these two cases local_sq_sleep returns true, so that the agent may block. */
bool local_sq_pop(
	struct local_control *c, uint32_t sq_entries, uint32_t *head, struct local_sqe *ret);
/* Agent: set the agent's sleep flag before the agent blocks. If the ring has an entry, clears the
 * flag again and returns false. Otherwise returns true. */
bool local_sq_sleep(struct local_control *c, uint32_t sq_entries, uint32_t head);
/* Agent: clear the agent's sleep flag. */
void local_sq_awake(struct local_control *c);
/* Agent: mark a round of a tensor as complete. The caller has checked `tensor`, the index of the
 * tensor's entry. After a batch of these calls, call local_done_wake once. */
void local_complete_round(struct local_control *c, uint32_t sq_entries, uint32_t tensor,
	uint64_t round, int status, uint32_t workers);
/* Agent: set workers_most, is_mine_missing and is_late of a tensor's entry. Call this function
 * before local_complete_round. */
void local_set_contributors(struct local_control *c, uint32_t sq_entries, uint32_t tensor,
	uint32_t workers_most, bool is_mine_missing, bool is_late);
/* Agent: wake the trainer's waiting threads, if there are any. */
void local_done_wake(struct local_control *c);
/* Agent: return whether a thread of the trainer waits for the tensor. */
bool local_is_awaited(struct local_control *c, uint32_t sq_entries, uint32_t tensor);
/* Trainer: block until done_seq differs from `seen`, at most for timeout_ns. Polls for spin_ns
 * first. entry: entry of the tensor for which the caller waits. Returns -ETIMEDOUT, -EINTR after a
 * signal, or 0. After a return of 0, done_seq may still be unchanged.
 * Usage: seen = done_seq; if not complete: local_done_wait(c, entry, seen, ...); repeat. */
int local_done_wait(struct local_control *c, struct local_entry *entry, uint32_t seen,
	uint64_t spin_ns, uint64_t timeout_ns);

/* Messages. Trainer to agent: HELLO DECLARE WHY FINISH ASK DEVICE BARRIER ASK_TRAFFIC ASK_TRACE.
 * Agent to trainer: WELCOME JOB DECLARED ARENA TEXT FINISHED PEOPLE DEVICE_AT PASSED TRAFFIC TRACE.
 * A frame is u16 type, u16 0, u32 seq, then the struct, encoded by common/wire/codec.h. An answer
 * has the seq of its request. A seq may be 0. */
enum local_type {
	LOCAL_HELLO = 1,
	/* Answer to HELLO. The message carries the descriptors of the control memfd and the
	 * eventfd, or the code and text of an error. After an error the agent closes the socket */
	LOCAL_WELCOME,
	/* Reports, without a request, that all workers of the job have joined (code 0), or that the
	 * job has failed. Only the first failure counts */
	LOCAL_JOB,
	LOCAL_DECLARE,
	LOCAL_DECLARED, /* answer to DECLARE; sent after the ARENA messages of the new arenas */
	LOCAL_ARENA,    /* carries the descriptor of an arena's memfd */
	LOCAL_WHY,      /* requests the reason why a round or the job waits or has failed */
	LOCAL_TEXT,     /* answer to WHY */
	LOCAL_FINISH,
	LOCAL_FINISHED, /* answer to FINISH when all workers have finished or the job has failed */
	/* Requests the list of the job's workers. For a tensor, the list also states which workers
	 * are missing in the tensor's last sum */
	LOCAL_ASK,
	LOCAL_PEOPLE, /* answer to ASK */
	LOCAL_DEVICE, /* requests a connection to the executor of this job's GPUs */
	/* Answer to DEVICE. The message carries a socket that is connected to the executor, or the
	 * code and text of an error */
	LOCAL_DEVICE_AT,
	LOCAL_BARRIER,     /* this worker has no round in flight and waits for all other workers */
	LOCAL_PASSED,      /* answer to BARRIER after all workers sent BARRIER or the job failed */
	LOCAL_ASK_TRAFFIC, /* requests the numbers of bytes that the agent has sent and received */
	LOCAL_TRAFFIC,     /* answer to ASK_TRAFFIC */
	LOCAL_ASK_TRACE,   /* requests a trace of the job's last rounds on this machine */
	/* Answer to ASK_TRACE. The message carries the descriptor of a memory file with the trace,
	 * or the code and text of an error */
	LOCAL_TRACE,
	LOCAL_TYPE_END
};

struct local_hello {
	uint16_t abi;
	const char *version;
	const char *job;
	uint32_t rank; /* rank of the worker, or UINT32_MAX if the scheduler must assign a rank */
	uint32_t size;
	uint32_t flags; /* enum job_flags */
	uint32_t part_bytes;
	struct blob token; /* the job's token, CTL_TOKEN_BYTES long, or empty if there is none */
	/* backup, grace_ms and max_size have the meaning that they have in struct ctl_join */
	uint16_t backup;
	uint32_t grace_ms;
	uint32_t max_size;
	uint32_t machine_size; /* has the meaning of local_size in struct ctl_join */
};
struct local_welcome {
	uint32_t code; /* 0 or the positive value of an error code */
	const char *text;
	/* LOCAL_TYPE_END of the agent. The agent supports all message types with smaller values */
	uint16_t n_types;
};
struct local_job {
	uint32_t code;
	const char *text;
	uint32_t rank;
	uint32_t size;
	/* number of this worker among the job's workers on this machine, from 0 */
	uint32_t local_rank;
	uint32_t local_size;
	uint64_t barrier; /* number of the last barrier that the job has passed */
	/* 1 if this worker is a newcomer: the worker joined the running job at the most recent
	 * barrier at which workers joined. Workers that are not newcomers get the number of
	 * newcomers in the field n_new of PASSED */
	uint8_t is_new;
	/* Lowest rank of the job's present workers that are not newcomers, or CTL_NO_ID if there is
	 * no such worker */
	uint32_t root;
	/* Cause of the failure that `code` reports. Every field `cause` has this meaning */
	struct ctl_cause cause;
};
struct local_decl {
	const char *name;
	struct tensor_shape shape;
	/* Number of the executor's region that contains the tensor, or 0 if the tensor is in host
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
	/* Offsets of the out-slots, indexed by round & 1; encoded as two u64 fields */
	uint64_t out_offset[2];
	struct ctl_cause cause;
};
struct local_declared {
	struct local_slot *slots; /* answers, in the order of the tensors in DECLARE */
	uint32_t n_slots;
};
struct local_arena {
	uint32_t id;
	uint8_t is_writable;
	uint64_t bytes;
};
struct local_why {
	uint32_t tensor; /* index of the tensor's entry, or UINT32_MAX for the whole job */
	uint64_t round;
};
struct local_text {
	uint32_t code; /* error code of the failure, or 0 if the round or job still waits */
	const char *text;
	struct ctl_cause cause;
};
struct local_none { /* for messages without content, because a layout needs at least one field */
	uint8_t unused;
};
struct local_finished {
	uint32_t code;
	const char *text;
	struct ctl_cause cause;
};

/* Largest number of workers per answer. Even with the longest names, this number of workers fits
 * into a frame */
#define LOCAL_PEOPLE_MAX 200
struct local_ask {
	/* Index of a tensor's entry in the control page, or UINT32_MAX for no tensor. The answer
	 * lists workers of the job. For a tensor, the answer also states which of these workers are
	 * missing in the tensor's last sum. */
	uint32_t tensor;
	/* The answer starts with the worker that has this index among the job's workers, sorted by
	 * rank */
	uint32_t first;
};
/* Worker of the job, or a worker that the job has lost. */
struct local_person {
	uint32_t rank;
	uint8_t is_lost;
	uint8_t is_new; /* 1: the worker is a newcomer, see is_new of struct local_job */
	/* Used only in an answer about a tensor. The value is 1 if the tensor's last sum lacks the
	 * worker's gradient in at least one partition */
	uint8_t is_missing;
	const char *host;
	const char *why; /* reason why the worker was lost, or "" if it was not lost */
};
struct local_people {
	/* The list is valid for this view of the job. The view grows with each change of the
	 * workers */
	uint64_t view;
	uint32_t n_all;
	struct local_person *people; /* workers, sorted by rank */
	uint32_t n_people;
};

struct local_traffic {     /* network traffic of the agent, for all its jobs */
	uint64_t instance; /* instance id of the agent; a new instance starts its counters at 0 */
	uint64_t sent_bytes, received_bytes;
};

/* Rounds that a trace shows; see struct round_choice of the agent. Zeros: all that are kept. */
struct local_ask_trace {
	uint64_t since_ns, first_round, last_round;
};

struct local_barrier {
	/* Number of this barrier: 1 more than the number of the last barrier that the worker has
	 * passed */
	uint64_t number;
};
struct local_passed {
	uint32_t code;
	const char *text;
	uint64_t barrier;
	uint32_t n_new; /* number of workers that were let in at this barrier */
	/* Lowest rank of the workers that were in the job before this barrier */
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
		struct local_ask_trace ask_trace;
		struct local_text trace;
	};
};

/* Return whether fd is a memfd that is sealed against shrinking, so that its mapped memory stays
 * valid. */
bool local_is_sealed(int fd);
const char *local_type_name(unsigned type);
/* Encode and send one frame with n_fds (<= LOCAL_FDS_MAX) descriptors. Blocks at most timeout_ms.
 * If timeout_ms is 0, the function does not block.
 * Errors: -EAGAIN or -ETIMEDOUT at the time limit; -EMSGSIZE for a frame that is too large; any
 * error of sendmsg(2), such as -EPIPE. */
int local_send(
	int sock, const struct local_msg *m, const int *fds, unsigned n_fds, uint32_t timeout_ms);
/* Convert the positive error code in a message to the negative code. Returns `fallback` when the
 * code is invalid. */
int local_code_from_wire(uint32_t wire, int fallback);
/* Received frame with its descriptors. Free the frame with local_frame_free. */
struct local_frame {
	struct local_msg msg;
	void *mem; /* memory of msg, allocated by codec_decode */
	int fds[LOCAL_FDS_ROOM];
	unsigned n_fds;
};
/* Free the memory of a frame, close its descriptors, and make the frame empty. To keep a descriptor
 * open, set its element of the array `fds` to -1 before this call. */
void local_frame_free(struct local_frame *f);
/* Receive one frame with its descriptors, which are close-on-exec. Waits at most timeout_ms. If
 * timeout_ms is 0, the function does not wait. The caller must free *ret also after an error. The
 * caller may free *ret on a different thread, because the sender of a descriptor can cause close(2)
 * of that descriptor to block. Returns 1, or 0 when the peer has closed the socket.
 * Errors: -EAGAIN or -ETIMEDOUT when no frame arrives in time; -ECONNRESET; -ENOMEM. BPS_EPROTO
 * when the frame is truncated or malformed, or has more than LOCAL_FDS_MAX descriptors. -EMFILE
 * when this process has reached its limit of descriptors. After -EMFILE the message is decoded, but
 * some of its descriptors are lost. */
int local_recv(int sock, struct local_frame *ret, uint32_t timeout_ms, struct err_text *err);
/* Decode the next frame, as local_recv with timeout_ms 0 does, but leave the frame in the socket.
 * Descriptors are not received. To remove the frame, receive one byte with recv(2): a socket of
 * type SOCK_SEQPACKET discards the rest of the frame. */
int local_peek(int sock, struct local_msg *ret, void **ret_mem, struct err_text *err);
/* Decode the bytes of a frame. local_recv and the fuzz target call this function. */
int local_decode(const void *buf, size_t n_bytes, struct local_msg *ret, void **ret_mem,
	struct err_text *err);
#endif
