#ifndef BPSCLIENT_SESSION_H
#define BPSCLIENT_SESSION_H
/* A worker's attachment to its machine's agent: the socket, the control page, the arenas. The
 * session knows neither tensors nor the completion of rounds (client.h).
 *
 * session_open ── JOINED ── session_fail (job, agent or protocol failed) ── session_close
 *
 * Threads: any thread may call any function but open and close. The lock serialises the socket: the
 * thread that holds it sends a request and reads until its answer, handling other frames in
 * between. Completions do not use the socket: they are read from the control page. A failure is
 * final, and all threads see it through `failure`.
 *
 * A server on this host sums inputs in place (docs/reference/faults.md, B6), even after the agent
 * has died. Once a failure is reported, inputs may be written. So before that they become private
 * copies, and no other process sees what is written then. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/local/local.h"
#include "common/wire/ctlmsg.h"
#include "libbpsclient/arenas.h"
#include "libbpsclient/options.h"
#include "libbpsclient/timed_lock.h"

struct session {
	const struct client_options *options; /* the caller's; must outlive the session */
	int sock, event_fd;
	struct local_control *control;
	size_t control_bytes;
	struct local_entry *entries;
	uint32_t tensor_entries;
	uint32_t rank, size, local_rank, local_size; /* from JOB */
	bool is_complete;                            /* JOB has come */
	uint64_t barrier; /* number of the job's last barrier when JOB came */
	bool is_new;      /* this worker joined at that barrier */
	uint32_t root;    /* the lowest rank that had joined before it */

	struct timed_lock lock; /* for the socket */

	/* Only for the thread that holds the lock. */
	uint32_t seq;
	struct mapped_arenas arenas;
	bool is_cut;       /* the socket is not used any more */
	bool has_lost_fds; /* the last frame lost descriptors, see local_recv */
	uint16_t n_types;  /* the agent knows message types below this */
	struct err_text failure_text;
	uint32_t cause_rank; /* of the failure; see struct ctl_cause */
	char cause_host[CTL_NAME_MAX + 1];

	/* 0 or the reason why the session ended; partner: session_fail stores it last */
	_Atomic int failure;
	_Atomic uint64_t poll_due_ns; /* next time to check the socket */
};

/* The place of one declared tensor. code: 0, or why it was refused (negative; text has the
 * sentence, cause_rank and cause_host are those of struct ctl_cause). */
struct session_slot {
	int code;
	struct err_text text;
	uint32_t cause_rank;
	char cause_host[CTL_NAME_MAX + 1];
	uint32_t tensor;
	void *in;
	const void *out[2];
};

/* Connect, attach, and wait until the job is complete (options->open_timeout_ms). Errors:
 * BPS_ENOAGENT, BPS_ETIMEDOUT, BPS_EPROTO, BPS_EVERSION, or the agent's refusal; err is the
 * sentence. */
int session_open(struct session *s, const struct client_options *options, struct err_text *err);
/* Drop the connection and unmap everything. */
void session_close(struct session *s);

/* Declare n <= LOCAL_DECLARE_MAX tensors of decls; bytes[i] is the size of one slot of the i-th.
 * Errors: the session's failure, BPS_ETIMEDOUT, BPS_EPROTO; refusals of single tensors are in their
 * slots. */
int session_declare(struct session *s, const struct local_decl *decls, const uint64_t *bytes,
	uint32_t n, struct session_slot *ret, struct err_text *err);
/* Get a connection to the executor of this job's GPUs. Owns: the caller, *ret_sock. Errors:
 * BPS_EDEVICE there is none, BPS_ETIMEDOUT; with a sentence. */
int session_device(struct session *s, uint32_t timeout_ms, int *ret_sock, struct err_text *err);
/* Report that this worker is done, and wait until all workers are. */
int session_finish(struct session *s, uint32_t timeout_ms, struct err_text *err);
/* Ask why (tensor, round) waits or has failed; *ret is the agent's sentence. Takes at most
 * SESSION_WHY_MS. tensor UINT32_MAX: the job. Errors: no answer came. */
#define SESSION_WHY_MS 900
int session_why(struct session *s, uint32_t tensor, uint64_t round, struct err_text *ret);
/* Wait for the other workers at that barrier until deadline_ns, which is timeout_ms after the
 * call's start. ret: the result of the barrier. Errors: BPS_ETIMEDOUT, the session's or the job's
 * failure, with a sentence. */
struct session_passed {
	uint32_t n_new, root;
};
int session_barrier(struct session *s, uint64_t number, uint64_t deadline_ns, uint32_t timeout_ms,
	struct session_passed *ret, struct err_text *err);
/* Request the workers of the job (tensor UINT32_MAX), or the contributors to that tensor's last
 * sum, starting with the first-th. fn is called with the answer. Errors: the session's failure,
 * BPS_ETIMEDOUT, with a sentence. */
int session_workers(struct session *s, uint32_t tensor, uint32_t first,
	void (*fn)(void *ctx, const struct local_people *page), void *ctx, struct err_text *err);
/* Request the agent's network traffic. Errors: as session_workers; -EOPNOTSUPP the agent's release
 * does not report it. */
int session_traffic(struct session *s, struct local_traffic *ret, struct err_text *err);
/* Wake the agent if it sleeps. The caller has pushed submissions. */
void session_publish(struct session *s);
/* Read the agent's messages, for at most timeout_ms, until one reports why the session has failed.
 * Other threads' requests wait meanwhile. Returns the failure's code, or 0. Thread: any. */
int session_await_failure(struct session *s, uint32_t timeout_ms);
/* Check for messages or the end of the agent, at most every SESSION_POLL_MS for all threads
 * together. Returns the failure's code or 0. */
#define SESSION_POLL_MS 200
int session_poll(struct session *s);
/* Return the failure's code and sentence, or 0. Sets the cause of bps_last_failure. */
int session_failure(struct session *s, struct err_text *ret);
#endif
