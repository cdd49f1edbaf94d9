/* Facts for the static analysers, which include this file before each source (-include). An
 * analyser checks one source at a time and does not see functions in other sources. Each macro
 * below replaces a function that writes an error text. The macro states that the function returns
 * its argument `code`. */
#include "libbpsclient/bps.h" /* must precede error.h, which compares its codes with bps.h */

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
