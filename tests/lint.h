/* Facts for the static analysers, which include this file before each source (-include). They check
 * one source at a time and do not see the bodies of functions in other sources. The macros below
 * state that a function that writes an error's text returns the negative code of its argument. */
#include "libbpsclient/bps.h" /* first: error.h compares its codes with these */

#include "common/base/error.h"
#include "libbpsclient/last_error.h"

#define err_set(err, code, ...)                                                                    \
	__extension__({                                                                            \
		err_set(err, code, __VA_ARGS__);                                                   \
		(code);                                                                            \
	})
#define last_error_set(code, ...)                                                                  \
	__extension__({                                                                            \
		last_error_set(code, __VA_ARGS__);                                                 \
		(code);                                                                            \
	})
