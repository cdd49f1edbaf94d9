#ifndef BPSCLIENT_SESSION_H
#define BPSCLIENT_SESSION_H
/* A worker's connection to the agent of its machine: the socket, the control page (shared memory
 * with the agent), and the arenas (shared memory that holds tensors). This file handles neither
 * tensors nor the completion of rounds (client.h).
 *
 * session_open ── JOINED ── session_record_failure (job, agent or protocol failed) ── session_close
 *
 * Threads: any thread may call any function except session_open and session_close. The lock
 * serialises the use of the socket: the thread that holds the lock sends a request and reads until
 * the answer comes, and handles other messages in between. Completions do not use the socket:
 * threads read them from the control page. After a failure the session stays failed; all threads
 * find the failure's code in `failure`.
 *
 * After a failure is reported, the caller may write to its inputs. But a server on this host sums
 * inputs in place (docs/reference/faults.md, B6), even after the agent has died. So the session
 * replaces the inputs by private copies before it reports the failure. Then no other process sees
 * later writes to the inputs. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/local/local.h"
#include "common/wire/ctlmsg.h"
#include "libbpsclient/base/arenas.h"
#include "libbpsclient/options.h"
#include "libbpsclient/base/timed_lock.h"

struct session {
	const struct client_options *options; /* owned by the caller; must outlive the session */
	int sock, event_fd;
	struct local_control *control;
	size_t control_bytes;
	struct local_entry *entries;
	uint32_t tensor_entries;
	uint32_t rank, size, local_rank, local_size; /* from the agent's message JOB */
	bool is_complete;                            /* JOB was received: all workers have joined */
	uint64_t barrier; /* number of the last barrier that the job passed before JOB was sent */
	bool is_new;      /* this worker joined at barrier number `barrier` */
	uint32_t root;    /* the lowest rank that had joined before barrier number `barrier` */

	struct timed_lock lock; /* held while a thread uses the socket */

	/* The thread that holds the lock may use these fields. */
	uint32_t seq;
	struct mapped_arenas arenas;
	bool is_cut; /* the socket is broken and must not be used any more */
	/* true if local_recv lost descriptors of the frame that arrived last, because this process
	 * has reached its limit of descriptors */
	bool has_lost_fds;
	uint16_t n_types; /* the agent accepts the message types below this number */
	struct err_text failure_text;
	uint32_t cause_rank; /* rank and machine that caused the failure (struct ctl_cause) */
	char cause_host[CTL_NAME_MAX + 1];

	/* 0, or the code with which the session failed. session_record_failure stores the code
	 * after failure_text, so a thread that reads the code may also read the text */
	_Atomic int failure;
	_Atomic uint64_t poll_due_ns; /* next time at which session_poll_failure reads the socket */

	pthread_mutex_t waits_lock; /* protects n_waits, and the waits in the control page */
	uint32_t n_waits;           /* number of threads between session_wait_begins and _ends */
};

/* Answer for one declared tensor. If `code` is 0, the answer has the tensor's index, and the
 * tensor's buffers unless the tensor is in device memory. If `code` is negative, `text` is the
 * reason: the agent has refused the declaration, or this process cannot map the buffers. For a
 * refusal, `cause_rank` and `cause_host` are the worker and the machine that caused the refusal
 * (struct ctl_cause). */
struct session_slot {
	int code;
	struct err_text text;
	uint32_t cause_rank;
	char cause_host[CTL_NAME_MAX + 1];
	uint32_t tensor;
	void *in;
	const void *out[2];
};

/* Connect, attach, and wait until all workers have joined. The whole call takes at most
 * options->open_timeout_ms. Errors: BPS_ENOAGENT, BPS_ETIMEDOUT, BPS_EPROTO, BPS_EVERSION, or the
 * code of the agent's refusal. Writes the error sentence to err. */
int session_open(struct session *s, const struct client_options *options, struct err_text *err);
/* Close the connection and unmap all memory. */
void session_close(struct session *s);

/* Declare n <= LOCAL_DECLARE_MAX tensors. bytes[i] is the size of one buffer of the tensor
 * decls[i], in bytes. `ret` is an array of n answers. The answer for a refused tensor has a
 * negative code.
 * Errors: BPS_ETIMEDOUT, BPS_EPROTO, or the error with which the session has failed; err gets a
 * sentence. */
int session_declare(struct session *s, const struct local_decl *decls, const uint64_t *bytes,
	uint32_t n, struct session_slot *ret, struct err_text *err);
/* Map n_bytes bytes of sums again, copy-on-write. The bytes begin at `address`, which must be a
 * page boundary. Owns: the caller unmaps *ret. The mapping stays valid after session_close.
 * Errors, with a sentence in err: -EINVAL if no arena of sums has this address; -ENOMEM. */
int session_copy_on_write(
	struct session *s, const void *address, uint64_t n_bytes, void **ret, struct err_text *err);
/* Get a connection to the executor, the process that drives the GPUs for this job. The caller must
 * close *ret_sock. Errors, with a sentence in err: BPS_EDEVICE if there is no executor;
 * BPS_ETIMEDOUT. */
int session_device(struct session *s, uint32_t timeout_ms, int *ret_sock, struct err_text *err);
/* Report that this worker is done, and wait until all workers are done. Errors: BPS_ETIMEDOUT, or
 * the error with which the session or the job has failed; err gets a sentence. */
int session_finish(struct session *s, uint32_t timeout_ms, struct err_text *err);
/* Ask the agent why a round of a tensor waits or has failed, and write the agent's sentence to
 * *ret. Takes at most SESSION_WHY_MS. If `tensor` is UINT32_MAX, ask about the job. Returns a
 * negative error code if no answer came. */
#define SESSION_WHY_MS 900
int session_request_reason(
	struct session *s, uint32_t tensor, uint64_t round, struct err_text *ret);
/* Result of session_barrier. n_new: number of workers that joined the job at this barrier. root:
 * the lowest rank that had joined before this barrier. */
struct session_passed {
	uint32_t n_new, root;
};
/* Wait for the other workers at barrier number `number` until deadline_ns, which is timeout_ms
 * after the call's start. Errors: BPS_ETIMEDOUT, or the error with which the session or the job has
 * failed; err gets a sentence. */
int session_barrier(struct session *s, uint64_t number, uint64_t deadline_ns, uint32_t timeout_ms,
	struct session_passed *ret, struct err_text *err);
/* Request a part of the list of the job's workers. The part begins with the entry at index `first`.
 * `tensor` is UINT32_MAX or the index of a tensor. In the list for a tensor, the field is_missing
 * marks the workers that are missing in the tensor's last sum. Calls fn with the answer. Errors:
 * BPS_ETIMEDOUT, or the error with which the session has failed; err gets a sentence. */
int session_workers(struct session *s, uint32_t tensor, uint32_t first,
	void (*fn)(void *ctx, const struct local_people *page), void *ctx, struct err_text *err);
/* Request the counters of the agent's network traffic, and write them to *ret. Errors: those of
 * session_workers; -EOPNOTSUPP if the agent's release does not report traffic. */
int session_traffic(struct session *s, struct local_traffic *ret, struct err_text *err);
/* Request a trace of the job's rounds on this machine. *ret_fd: a memory file with the trace, which
 * the caller closes. Errors: those of session_traffic; -EBUSY, -ENOMEM from the agent. */
int session_trace(
	struct session *s, const struct local_ask_trace *ask, int *ret_fd, struct err_text *err);
/* Note in the control page that a call begins or ends to wait for a round, so that the agent can
 * report where the time of steps goes. */
void session_wait_begins(struct session *s);
void session_wait_ends(struct session *s);
/* Let the agent see the submissions that the caller has put into the ring. Wake the agent if it
 * sleeps. */
void session_publish(struct session *s);
/* Read the agent's messages, for at most timeout_ms, until a message reports why the session has
 * failed. Requests of other threads wait meanwhile. Returns the failure's code, or 0. Thread:
 * any. */
int session_await_failure(struct session *s, uint32_t timeout_ms);
/* Read the messages that have arrived, and detect that the agent has ended. Most calls return
 * without a read, because all threads together read the socket at most once per SESSION_POLL_MS.
 * Returns the code of the session's failure, or 0. */
#define SESSION_POLL_MS 200
int session_poll_failure(struct session *s);
/* If the session has failed, write the error text to *ret, set the cause that bps_last_failure
 * returns, and return the error code. Otherwise return 0. */
int session_failure(struct session *s, struct err_text *ret);
#endif
