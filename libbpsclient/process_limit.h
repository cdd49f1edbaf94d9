#ifndef BPSCLIENT_PROCESS_LIMIT_H
#define BPSCLIENT_PROCESS_LIMIT_H
/* The sentence of a call that met a limit of this process (setrlimit(2)). Thread: any. */
struct err_text;

/* Write `what` with its cause and the limit behind it, which is to be raised; returns code.
 * code: -EMFILE, -ENOMEM; any other without a limit. */
int process_limit_explain(int code, const char *what, struct err_text *err);
#endif
