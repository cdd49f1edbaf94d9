#ifndef BPSCLIENT_PROCESS_LIMIT_H
#define BPSCLIENT_PROCESS_LIMIT_H
/* Error texts for a call that exceeded a resource limit of this process (setrlimit(2)). Thread:
 * any. */
struct err_text;

/* Write to err what failed, why, and which limit the user must raise. code: -EMFILE or -ENOMEM; the
 * text for any other code names no limit. Returns code. */
int process_limit_explain(int code, const char *what, struct err_text *err);
#endif
