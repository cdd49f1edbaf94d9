/* For the static analysers only (-include). They check one file at a time, so they need to be told
 * that functions that write an error's text return the negative code that they were given. */
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
