#include "common/transport/fabric/fabric_gates.h"

#include <errno.h>

#include <rdma/fabric.h>

#include "common/transport/flow/read_window.h"

#define OLDEST      FI_VERSION(1, 17)
#define SPINNING    FI_VERSION(1, 18)
#define MENDED      FI_VERSION(1, 19)
#define WITH_GET_FD FI_VERSION(2, 2)

#define CONNS_FEW  256
#define CONNS_MANY 1024

#define READ_LEAST_1_17 (UINT32_C(512) << 10)

int fabric_gates_check(uint32_t version, struct err_text *err)
{
	if (FI_VERSION_LT(version, OLDEST))
		return err_set(err, -ENOSYS,
			"libfabric %u.%u is too old: install " FABRIC_VERSIONS_TEXT,
			FI_MAJOR(version), FI_MINOR(version));
	if (version == SPINNING)
		return err_set(err, -ENOSYS,
			"libfabric 1.18 keeps a processor busy while a data thread is idle: "
			"install " FABRIC_VERSIONS_TEXT);
	return 0;
}

struct fabric_gates fabric_gates_of(uint32_t version, bool is_verbs)
{
	bool is_mended = FI_VERSION_GE(version, MENDED);
	uint32_t tcp_least = is_mended ? READ_WINDOW_FIRST : READ_LEAST_1_17;

	return (struct fabric_gates){
		.is_spoiled_by_cut_reads = !is_verbs && !is_mended,
		.has_eager = !is_verbs && is_mended,
		.has_own_events = !is_verbs && is_mended,
		.has_get_fd = !is_verbs && FI_VERSION_GE(version, WITH_GET_FD),
		.conns_max = !is_verbs && is_mended ? CONNS_MANY : CONNS_FEW,
		.read_least_bytes = is_verbs ? READ_WINDOW_MIN : tcp_least,
	};
}
