#ifndef BPS_AGENT_CORE_CORE_IMPL_H
#define BPS_AGENT_CORE_CORE_IMPL_H
/* Objects of the agent's core, shared by its files:
 *   core.c   jobs, tensors, plans: what the scheduler and the trainers say
 *   flow.c   partitions: their states, messages, reads
 *   link.c   connections to servers' data threads: windows, reconnecting
 *   lockstep.c  what a job has on each of them; keeping them in step */
#include <sys/queue.h>

#include "bps-agent/core/core.h"
#include "common/data/dtype.h"
#include "common/base/heap.h"
#include "common/data/reduce.h"

enum agt_part_state {
	PART_IDLE,    /* round complete (or 0) */
	PART_READY,   /* to be sent: in share->ready, job->parked, core->local, or without a home */
	PART_SENT,    /* its timer runs */
	PART_WAITING, /* the server asked for a pause: its timer runs */
	PART_OFFERED, /* on link->offered: the read could not start yet */
	PART_FETCHING, /* the read is running */
};

enum part_owe { OWE_HAVE = 1, OWE_DONATE = 2 };

struct agt_link;
struct agt_part {
	struct agt_tensor *tensor;
	uint32_t index;
	enum agt_part_state state;
	struct agt_link *link; /* where it lives now; NULL: nowhere, or a job of one member */
	struct lockstep_share *share; /* its job's on that link */
	uint64_t pgen;
	uint64_t round;        /* in IDLE: the last complete one, else the one under way */
	uint64_t crc_round;    /* crc is of this round's contribution */
	struct heap_node node; /* READY */
	/* In core->timers: SENT, WAITING, or IDLE and READY with HAVE unheard. */
	struct heap_node timer;
	TAILQ_ENTRY(agt_part) offered; /* OFFERED */
	TAILQ_ENTRY(agt_part) owing;   /* link->owing, when owes != 0 */
	TAILQ_ENTRY(agt_part) home;    /* link->parts */
	uint8_t owes;                  /* enum part_owe */
	bool is_charged;               /* its bytes count in link->inflight and job->inflight */
	bool is_parked;                /* READY: in job->parked, not share->ready */
	bool is_staging;               /* READY: its bytes are not in the inputs yet */
	bool is_stale;                 /* FETCHING for an older pgen: to be discarded */
	bool is_have_unconfirmed;      /* the server of this pgen has not acknowledged HAVE */
	bool is_overdue; /* sent again for want of an answer: the window does not count it */
	uint8_t n_tries, n_agains; /* how often it was said without an answer; pauses asked for */
	uint8_t n_bad_crc, n_misfits;
	uint32_t crc;                 /* of the contribution */
	uint64_t sent_ns, offered_ns; /* of this round: the first CONTRIB, 0: none yet; the offer */
	uint64_t donate_round;
	/* The offer in hand. */
	struct xport_read read;
	struct wire_msg offer;
	struct agt_kept_part *kept;
};
TAILQ_HEAD(part_list, agt_part);

/* A GOT that waits for credit: its partition may be elsewhere or gone by then. */
struct agt_owed_got {
	TAILQ_ENTRY(agt_owed_got) link;
	struct wire_msg m;
};

enum link_state { LINK_DOWN, LINK_CONNECTING, LINK_UP };

/* The connection to one data thread of one server. */
struct agt_link {
	TAILQ_ENTRY(agt_link) link;
	TAILQ_ENTRY(agt_link) active; /* core->active when is_active */
	struct agt_core *core;
	uint32_t server;
	uint16_t thread;
	bool is_active; /* may have something to send */
	bool is_stuck;  /* a GOT, or what is owed, found no credit: nothing goes until writable */
	bool is_full;   /* a contribution was refused: no new one goes until writable */
	enum link_state state;
	struct xconn *conn;     /* CONNECTING and UP */
	struct heap_node timer; /* in core->link_timers when DOWN and needed */
	unsigned n_tries;
	uint64_t down_since_ns;
	size_t inflight; /* bytes */
	size_t n_parts;
	struct part_list parts, offered, owing;
	TAILQ_HEAD(, lockstep_share) shares;
	TAILQ_HEAD(, agt_owed_got) gots;
};

/* What a job has on a server. */
struct lockstep_server {
	uint32_t server;
	uint64_t bytes;
};

/* What a job has on a link; on link->shares while it has partitions there. */
struct lockstep_share {
	TAILQ_ENTRY(lockstep_share) of_link;
	struct agt_link *link;
	struct agt_job *job;
	struct heap ready;     /* READY partitions, but for those that are parked */
	struct heap_node lag;  /* in job->lagging while lockstep_counts; key: progress */
	struct heap_node wait; /* in job->held; key: the progress that it waits for */
	size_t n_parts;
	uint64_t burst;                   /* the job's that it took part in last */
	uint64_t sent_bytes, ready_bytes; /* in that burst; of ready */
	/* When it sent a contribution last, or could have begun to; the mean gap between two. */
	uint64_t moved_ns, gap_ns;
	bool is_late; /* it has sent nothing for too long: nobody waits for it until it does */
};

struct agt_tensor {
	TAILQ_ENTRY(agt_tensor) link;
	struct agt_job *job;
	void *user;
	uint8_t dtype, op;
	bool is_planned;
	bool is_running;   /* round + 1 is under way */
	bool is_device;    /* its bytes come to the inputs, and go from the outputs, by others */
	bool is_unstaging; /* all sums are in, and not all on the devices */
	bool has_landed;   /* not running, but parts of round + 1 landed in a former life */
	int failed;        /* 0, or the code that its rounds end with */
	uint16_t priority;
	uint32_t id;
	uint64_t n_elems;
	uint32_t part_elems, n_parts, parts_left;
	uint64_t round;       /* last complete */
	uint64_t begun_seq;   /* of round + 1, among those of all jobs */
	uint32_t n_submitted; /* local workers that submitted round + 1 */
	struct agt_mem staging, out[2];
	struct agt_part *parts;
	struct agt_kept_part *own_kept; /* when nobody else keeps it */
	uint64_t *submitted;            /* per worker */
	uint32_t n_in;
	struct agt_mem in[]; /* per worker; of a device tensor, as many as there are */
};

struct agt_job {
	TAILQ_ENTRY(agt_job) link;
	struct agt_core *core;
	uint32_t id, size;
	uint16_t member, n_members;
	uint32_t n_workers; /* local */
	uint64_t tensor_bytes;
	int failed;
	bool is_local;   /* no server takes part */
	uint64_t border; /* view; a partition with an older pgen waits for its new place */
	bool may_shrink; /* then servers on this host check what they take from us, too (B6) */
	bool has_backup; /* rounds may be complete without us, so others must hear what we have */
	bool is_closing;
	uint32_t n_reads; /* running; the last one frees a closing job */
	void (*release)(void *ctx);
	void *release_ctx;
	TAILQ_HEAD(, agt_tensor) tensors;
	struct agt_tensor **by_id;
	uint32_t n_by_id;
	uint32_t *ranks;   /* per local worker */
	uint64_t inflight; /* bytes */
	size_t n_parts;
	struct heap parked; /* READY partitions that wait for inflight to become less */
	/* Shares that others are held for, the one furthest behind first; and those that are held. */
	struct heap lagging, held;
	size_t n_shares;
	struct lockstep_server *homes; /* how many bytes live on which server */
	size_t n_homes, homes_room;
	bool is_in_step; /* in this burst connections that are ahead are held */
	uint64_t burst;  /* how often lagging has begun to fill */
	/* Of the first one's next contribution, when others were released last. */
	uint64_t behind_urgency;
};

struct agt_core {
	struct agt_config cfg;
	struct agt_env env;
	uint64_t n_begun; /* rounds of tensors so far */
	struct xport *x;
	TAILQ_HEAD(, agt_job) jobs;
	TAILQ_HEAD(, agt_link) links, active;
	struct heap local;       /* READY partitions of jobs with one member */
	struct heap timers;      /* of partitions, key: deadline */
	struct heap link_timers; /* key: next attempt to connect */
	size_t n_parts, n_links;
	uint64_t now_ns;
	float *scratch;
	struct agt_stats stats;
};

#define AGT_BLOCK_ELEMS 8192

/* core.c */
/* NULL: not known, or closing. */
struct agt_job *agt_job_find(struct agt_core *core, uint32_t id);
/* One more partition of the round under way is complete; the last one ends the round. */
void agt_tensor_part_done(struct agt_tensor *t);
/* The job fails by what this agent has seen: its rounds end with code, and env->fail tells the
 * scheduler. */
void agt_job_error(struct agt_job *job, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Free a job that is closing once none of its reads runs. */
void agt_job_reads_ended(struct agt_job *job);

/* flow.c */
size_t part_elems(const struct agt_part *part);
uint32_t part_bytes(const struct agt_part *part);
/* The tensor's next round begins for this partition. */
void part_start(struct agt_part *part);
/* Its bytes are in the inputs. */
void part_staged(struct agt_part *part);
/* Tell its server that the results offered so far will not be read: before it leaves. */
void part_send_got(struct agt_part *part);
/* End its round without a sum. A running read is left to end stale. */
void part_abandon(struct agt_part *part, const char *why);
/* Take it out of every list and timer; a running read is left to end stale. */
void part_stop(struct agt_part *part);
/* It lives on link (NULL: nowhere) since pgen. */
void part_move(struct agt_part *part, struct agt_link *link, uint64_t pgen);
/* Its connection is gone, or new: its soft state has to be sent again (A3). */
void part_restart(struct agt_part *part);
/* A message of the server at that link; what does not fit is counted as stale, or closes the
 * connection. */
void part_message(struct agt_link *link, const struct wire_msg *m);
/* The read of its offer has ended. status: of xport_events.read_done. */
void part_read_done(struct agt_part *part, int status);
/* Errors: those of xport_send. */
int part_send_contrib(struct agt_part *part);
int part_send_owed(struct agt_part *part, enum part_owe what);
/* Start reading its offer. False: not now. */
bool part_fetch(struct agt_part *part);
/* Its timer in core->timers is due. */
void part_timer(struct agt_part *part);
/* Of its node in a heap. */
static inline struct agt_part *part_of(struct heap_node *node)
{
	return (struct agt_part *)((char *)node - offsetof(struct agt_part, node));
}
/* May it be sent, as far as its job's bytes under way go? */
bool part_fits_job(const struct agt_part *part);
/* Out of share->ready until its job has less under way. */
void part_park(struct agt_part *part);
/* Back to their links with those that fit now. */
void job_unpark(struct agt_job *job);
/* Sum a partition of a job of one member into the output. */
void part_sum_local(struct agt_part *part);

/* lockstep.c */
/* The job's share of the link, made when there is none. NULL: out of memory. */
struct lockstep_share *lockstep_share_get(struct agt_link *link, struct agt_job *job);
/* Free it if it has no partitions. */
void lockstep_share_put(struct lockstep_share *s);
/* A partition lives on its link now, or does no more. */
void lockstep_add_part(struct lockstep_share *s, const struct agt_part *part);
void lockstep_drop_part(struct lockstep_share *s, const struct agt_part *part);
/* Its link has changed. */
void lockstep_changed(struct lockstep_share *s);
/* A partition can be sent; it can not any more; it has been. */
void lockstep_push(struct agt_part *part);
void lockstep_remove(struct agt_part *part);
void lockstep_sent(struct agt_part *part);
/* It has something to send, and waits for the one furthest behind. */
bool lockstep_is_held(const struct lockstep_share *s);
/* Activate its link when it is not held any more. */
void lockstep_hold(struct lockstep_share *s);
/* Others wait for it, and it for others. */
bool lockstep_counts(const struct lockstep_share *s);
/* Wait no longer for who is late. Returns when the next one will be, UINT64_MAX: never. */
uint64_t lockstep_tick(struct agt_job *job);

/* link.c */
/* The link to that thread, made when there is none. NULL: out of memory. */
struct agt_link *link_get(struct agt_core *core, uint32_t server, uint16_t thread);
/* The partition, which has none, lives on this link; connect if need be. Errors: -ENOMEM. */
int link_attach(struct agt_link *link, struct agt_part *part);
/* It lives nowhere, and must not be in share->ready or link->offered any more. */
void link_detach(struct agt_part *part);
/* Send part_send_owed(part, what) when there is credit; nothing without a link. */
void link_owe(struct agt_part *part, enum part_owe what);
void link_drop_owed(struct agt_part *part);
/* Say GOT for the result that m names, now or when there is credit. */
void link_send_got(struct agt_link *link, const struct wire_msg *m);
/* It may have something to send: link_pump will look, when it is UP. */
void link_activate(struct agt_link *link);
/* Send what may be sent, one contribution at most; true when more could follow. */
bool link_pump(struct agt_link *link);
/* Without connection, partitions and GOTs. */
void link_free(struct agt_link *link);
/* Its timer in core->link_timers is due: connect. */
void link_retry(struct agt_link *link);
#endif
