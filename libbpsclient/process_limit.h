#ifndef BPSCLIENT_PROCESS_LIMIT_H
#define BPSCLIENT_PROCESS_LIMIT_H
/* The sentence of a call that exceeded a limit of this process (setrlimit(2)). Thread: any. */
struct err_text;

/* Write `what` with its cause and the limit that the user must raise. Returns code. code: -EMFILE,
 * -ENOMEM; any other code without a limit. */
int process_limit_explain(int code, const char *what, struct err_text *err);
#endif
