#ifndef BPS_COMMON_WIRE_CTLMSG_H
#define BPS_COMMON_WIRE_CTLMSG_H
/* Messages of the control channel between the scheduler and its members (servers and agents). The
 * headers ctlmsg_*.h have the plain structs by subject. common/wire/codec.h encodes them; ctlmsg.c
 * has the field tables. A frame is the message's type (u16) and its struct
 * (common/control/ctlchan.h).
 *
 *   member -> scheduler          scheduler -> member
 *   HELLO                        WELCOME | REFUSE
 *   BEAT                         BEAT
 *                                PEERS    the servers (to an agent) or the agents (to a server)
 *   JOIN (agent)                 JOINED, then JOB when the job is complete
 *   UNJOIN (agent)
 *   DECLARE (agent)              PLAN (tensors, partitions' servers) | TENSOR_FAIL
 *   WORKER (agent)               JOB_END
 *   FAIL (any)                   JOB_END
 *   LEAVE                        LEFT     to a server: its partitions have moved, or will not move
 *   WHY (agent)                  WHY_TEXT
 *   REPORT (agent)               PROBE    REPORT answers PROBE
 *   SEEN                         SIGHT    SEEN answers SIGHT
 *
 *   operator -> scheduler        scheduler -> operator
 *   STEER                        STEERED, then the connection is closed */
#include <stddef.h>
#include <stdint.h>

#include "common/wire/codec.h"
#include "common/wire/ctlmsg_job.h"
#include "common/wire/ctlmsg_member.h"
#include "common/wire/ctlmsg_steer.h"
#include "common/wire/ctlmsg_tensor.h"

#define CTL_PROTO 2
/* Largest length of names of hosts, members and users, and of other short strings */
#define CTL_NAME_MAX        63
#define CTL_HTTP_MAX        263 /* an address, as ADDR_TEXT_BYTES */
#define CTL_JOB_NAME_MAX    127
#define CTL_TENSOR_NAME_MAX 255
#define CTL_TEXT_MAX        511
/* Largest length of the text that states why a machine is no longer part of a job */
#define CTL_WHY_GONE_MAX  127
#define CTL_KEY_BYTES     32
#define CTL_TOKEN_BYTES   32
#define CTL_BOOT_ID_BYTES 16
/* Means "no id" or "no rank". If a worker requests the rank CTL_NO_ID, the scheduler assigns a rank
 * to the worker. */
#define CTL_NO_ID       UINT32_MAX
#define CTL_WORKERS_MAX 65536 /* largest number of workers of a job */
/* Largest number of items in a list of one DECLARE, PLAN or PEERS */
#define CTL_LIST_MAX    4096
#define CTL_TENSORS_MAX (1u << 20) /* tensor ids of a job are below this number */
/* Largest number of arguments of one STEER message, and largest length of an argument's value. A
 * STEER message must fit into CTLFRAME_UNTRUSTED_BYTES. */
#define CTL_STEER_ARGS_MAX  8
#define CTL_STEER_VALUE_MAX 255
#define CTL_JSON_MAX        (512u << 10)
/* Largest memory of one decoded message, in bytes. The largest message that the other limits allow
 * is a REPORT, which takes half of this memory. */
#define CTL_MEM_MAX (8u << 20)

enum ctl_type {
	CTL_HELLO = 1,
	CTL_WELCOME,
	CTL_REFUSE,
	CTL_BEAT,
	CTL_PEERS,
	CTL_JOIN,
	CTL_JOINED,
	CTL_JOB,
	CTL_JOB_END,
	CTL_DECLARE,
	CTL_PLAN,
	CTL_TENSOR_FAIL,
	CTL_WORKER,
	CTL_FAIL,
	CTL_WHY,
	CTL_WHY_TEXT,
	CTL_PROBE,
	CTL_REPORT,
	CTL_STEER,
	CTL_STEERED,
	CTL_SIGHT,
	CTL_SEEN,
	CTL_LEAVE,
	CTL_LEFT,
	CTL_UNJOIN,
	CTL_TYPE_END
};

struct ctl_msg {
	uint16_t type; /* value of enum ctl_type; selects the member of the union */
	union {
		struct ctl_hello hello;
		struct ctl_welcome welcome;
		struct ctl_refuse refuse;
		struct ctl_beat beat;
		struct ctl_peers peers;
		struct ctl_join join;
		struct ctl_joined joined;
		struct ctl_job job;
		struct ctl_job_end job_end;
		struct ctl_declare declare;
		struct ctl_plan plan;
		struct ctl_tensor_fail tensor_fail;
		struct ctl_worker worker;
		struct ctl_fail fail;
		struct ctl_why why;
		struct ctl_why_text why_text;
		struct ctl_probe probe;
		struct ctl_report report;
		struct ctl_steer steer;
		struct ctl_steered steered;
		struct ctl_sight sight; /* fields of the messages SIGHT and SEEN */
		struct ctl_leave leave;
		struct ctl_left left;
		struct ctl_unjoin unjoin;
	};
};

/* ctl_layout returns the layout of the struct of a message type. ctl_type_name returns the name of
 * the type, such as "HELLO". Both return NULL for an unknown type. */
const struct layout *ctl_layout(unsigned type);
const char *ctl_type_name(unsigned type);

/* Decode the body of a frame into *ret. *ret_mem is as for codec_decode: the caller frees it.
 * Errors: those of codec_decode. An unknown type also gives BPS_EPROTO. */
int ctl_decode(unsigned type, const void *buf, size_t n_bytes, struct ctl_msg *ret, void **ret_mem,
	struct err_text *err);
#endif
