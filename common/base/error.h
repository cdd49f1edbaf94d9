#ifndef BPS_COMMON_BASE_ERROR_H
#define BPS_COMMON_BASE_ERROR_H
/* Error codes of all programs. 0 or a count means success. A system error is -errno. The project's
 * own codes are below -10000, outside the ranges of libuv and libfabric. One table defines the enum
 * and the texts. The compiler checks that the public names in libbpsclient/bps.h match this table.
 *
 * An error that a person will read also has a text: struct err_text. The function that detects the
 * error writes the text: what failed, on what object, why, and what to do next. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#define BPS_ERRORS(X)                                                                              \
	X(BPS_ETIMEDOUT, 10001, "timed out")                                                       \
	X(BPS_EBUSY, 10002, "a push_pull of this tensor is already in flight")                     \
	X(BPS_EMISMATCH, 10003, "workers disagree")                                                \
	X(BPS_ENOSERVER, 10004, "no server can be reached")                                        \
	X(BPS_ENOSCHED, 10005, "the scheduler cannot be reached")                                  \
	X(BPS_ENOAGENT, 10006, "the agent cannot be reached")                                      \
	X(BPS_EWORKER_LOST, 10007, "a worker is lost")                                             \
	X(BPS_EAGENT_LOST, 10008, "an agent is lost")                                              \
	X(BPS_EEVICTED, 10009, "this machine was evicted from the job")                            \
	X(BPS_EINPUT_CHANGED, 10010, "a submitted tensor was written to before it completed")      \
	X(BPS_EDIVERGED, 10011, "workers hold different results of the same round")                \
	X(BPS_EQUOTA, 10012, "a quota is exhausted")                                               \
	X(BPS_EPROTO, 10013, "the peer broke the protocol")                                        \
	X(BPS_EVERSION, 10014, "incompatible protocol version")                                    \
	X(BPS_EAUTH, 10015, "authentication failed")                                               \
	X(BPS_ENOTFOUND, 10016, "no such object")                                                  \
	X(BPS_EDUP, 10017, "already registered")                                                   \
	X(BPS_ECLOSED, 10018, "closed")                                                            \
	X(BPS_EFORKED, 10019, "this handle belongs to the parent process of a fork")               \
	X(BPS_ENOTDURABLE, 10020, "the scheduler cannot write its state")                          \
	X(BPS_EJOB_FAILED, 10021, "the job has failed")                                            \
	X(BPS_EROUND_LOST, 10022, "a round was lost with its server")                              \
	X(BPS_EDRAINED, 10023, "this machine accepts no new jobs")                                 \
	X(BPS_EDEVICE, 10024, "a GPU or its executor failed")                                      \
	X(BPS_EISOLATED, 10025, "this machine receives nothing from the scheduler or any server")

/* If a file includes libbpsclient/bps.h before this header, bps.h has already defined these names.
 * In that case only check that their values in bps.h match the table above. */
#ifdef BPS_H
#define X(name, num, text) _Static_assert((name) == -(num), #name);
BPS_ERRORS(X)
#undef X
#else
enum bps_error {
#define X(name, num, text) name = -(num),
	BPS_ERRORS(X)
#undef X
};
#endif

#define ERR_TEXT_BYTES 512

/* Sentence that explains a failure to a person. Empty when the error code needs no explanation. */
struct err_text {
	char s[ERR_TEXT_BYTES];
};

/* Return the text of an error code, which is -errno or one of the project's own codes. The result
 * is never NULL. It is valid until the same thread calls err_str again. */
const char *err_str(int code);

/* Return the name of one of the project's codes, such as "BPS_EBUSY". For any other number, return
 * NULL. */
const char *err_name(int code);

/* Write a sentence into `err`, and return the value of `code`. Because of this return value, a
 * function can end with `return err_set(err, -ENOENT, "cannot open '%s'", path);`. A sentence that
 * does not fit is cut. err may be NULL. */
int err_set(struct err_text *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Return what a text appends to a noun after the number n: "1 worker", "2 workers". */
static inline const char *plural_suffix_of(uint64_t n)
{
	return n == 1 ? "" : "s";
}

/* Return what a text appends to a verb after the number n of its subjects: "1 worker waits". */
static inline const char *verb_suffix_of(uint64_t n)
{
	return n == 1 ? "s" : "";
}

/* Write the variable arguments of the calling function to the array `buf`, in the format of `fmt`,
 * its last named parameter. A text that does not fit is cut. */
#define format_arguments(buf, fmt)                                                                 \
	do {                                                                                       \
		va_list ap;                                                                        \
                                                                                                   \
		va_start(ap, fmt);                                                                 \
		vsnprintf(buf, sizeof(buf), fmt, ap);                                              \
		va_end(ap);                                                                        \
	} while (0)
#endif
