#ifndef BPSCLIENT_SESSION_IMPL_H
#define BPSCLIENT_SESSION_IMPL_H
/* Functions that session.c and session_requests.c share. For all of them, the caller holds the
 * session's lock. */
#include "libbpsclient/session.h"

/* Send m and receive its answer in f, which the caller frees. Errors: -EOPNOTSUPP if the agent does
 * not support this type of message; -ETIMEDOUT; or the error with which the session has failed. */
int session_send_and_receive(struct session *s, struct local_msg *m, uint16_t answer_type,
	uint64_t deadline_ns, struct local_frame *f);
/* Write to err why a request has no answer. Returns the error's code. */
int session_explain_request(struct session *s, int rc, const char *what, struct err_text *err);
/* Stop using the connection, because it was closed or the agent broke the protocol. Records the
 * session's failure and returns its code. */
int session_cut_connection(struct session *s, int code, const char *why);
/* Take descriptor i out of a frame. The caller then owns the descriptor. */
int frame_detach_fd(struct local_frame *f, unsigned i);
#endif
