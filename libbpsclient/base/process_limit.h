#ifndef BPSCLIENT_PROCESS_LIMIT_H
#define BPSCLIENT_PROCESS_LIMIT_H
/* Error texts for a call that exceeded a resource limit of this process (setrlimit(2)). Thread:
 * any. */
struct err_text;

/* Write an error text to err: the failed operation `what`, the reason, and the limit that the user
 * must raise. The text names a limit only if `code` is -EMFILE or -ENOMEM. Returns `code`. */
int process_limit_explain(int code, const char *what, struct err_text *err);
#endif
