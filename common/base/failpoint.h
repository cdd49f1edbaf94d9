#ifndef BPS_COMMON_BASE_FAILPOINT_H
#define BPS_COMMON_BASE_FAILPOINT_H
/* Failpoints: named points of the shipped programs and the library where a fault can be injected.
 * They are compiled in always, so that what is tested is what is shipped, and off unless somebody
 * names them; each costs one load and one predictable branch then.
 *
 * Who may set them: whoever starts the process or may change its settings' file, nobody else. A
 * daemon takes the setting `faults` (flag, BPS_FAULTS, file; live, so SIGHUP takes it from the
 * file); the library takes BPS_FAULTS of its own process, which harms only that. No message and no
 * HTTP request sets one.
 *
 *   faults = server.result.before-send=drop,prob=0.01 server.thread.tick=hang,after=5000 seed=7
 *
 * Words are separated by blanks. A word is POINT=ACTION with options behind commas:
 *   crash        the process is gone, as by SIGKILL
 *   sleep:200ms  the thread sleeps
 *   hang         the thread hangs, until the faults change
 *   error:NAME   the step fails with an errno or code of ours (ENOSPC, BPS_EPROTO), where it can fail
 *   drop         the step is skipped, where what it does is done again or may get lost
 *   after=N      not the first N times; count=N at most N times; prob=P each time by chance
 * seed=N makes chance repeatable: whether a point acts depends on the seed, its name and how often
 * it was passed. A name that is not one is refused with the nearest that is; an action that the
 * point does not take, too.
 *
 * Thread: any may pass a point; failpoint_set is the main thread's, or the library's first open. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/error.h"

enum failpoint_owner { FP_SCHED = 1, FP_SERVER = 2, FP_AGENT = 4, FP_CLIENT = 8 };

/* What a point takes beside crash, sleep and hang. */
enum failpoint_takes { FP_ANY, FP_ERROR = 1, FP_DROP = 2, FP_BOTH = 3 };

#define FP_MEMBERS (FP_SERVER | FP_AGENT)
#define FP_DAEMONS (FP_SCHED | FP_MEMBERS)

/* name in code, name for people, whose, what it takes, where it is */
#define FAILPOINTS(X)                                                                              \
	X(SERVER_CONTRIB_RECEIVED, "server.contrib.received", FP_SERVER, FP_DROP,                  \
		"a contribution has arrived")                                                      \
	X(SERVER_HAVE_RECEIVED, "server.have.received", FP_SERVER, FP_DROP,                        \
		"an agent says that it has a result")                                              \
	X(SERVER_DONATE_RECEIVED, "server.donate.received", FP_SERVER, FP_DROP,                    \
		"an agent donates a result")                                                       \
	X(SERVER_GOT_RECEIVED, "server.got.received", FP_SERVER, FP_ANY,                           \
		"an agent has read a result")                                                      \
	X(SERVER_READ_START, "server.read.start", FP_SERVER, FP_ANY,                               \
		"before a contribution is read")                                                   \
	X(SERVER_READ_DONE, "server.read.done", FP_SERVER, FP_ERROR,                               \
		"a contribution has been read")                                                    \
	X(SERVER_SUM_START, "server.sum.start", FP_SERVER, FP_ANY,                                 \
		"all have contributed, before the sum")                                            \
	X(SERVER_RESULT_DONE, "server.result.done", FP_SERVER, FP_ANY,                             \
		"a sum is complete, before it is offered")                                         \
	X(SERVER_RESULT_BEFORE_SEND, "server.result.before-send", FP_SERVER, FP_DROP,              \
		"before a result is sent")                                                         \
	X(SERVER_DONATION_ASK, "server.donation.ask", FP_SERVER, FP_DROP,                          \
		"before an agent is asked for a result")                                           \
	X(SERVER_JOB_NEW, "server.job.new", FP_SERVER, FP_ERROR, "the scheduler tells a new job")  \
	X(SERVER_PLAN_APPLY, "server.plan.apply", FP_SERVER, FP_ANY,                               \
		"the scheduler places partitions")                                                 \
	X(SERVER_MEMORY_SEGMENT, "server.memory.segment", FP_SERVER, FP_ERROR,                     \
		"memory is taken for sums or staging")                                             \
	X(SERVER_PEER_UP, "server.peer.up", FP_SERVER, FP_ANY, "an agent has connected")           \
	X(SERVER_PEER_DOWN, "server.peer.down", FP_SERVER, FP_ANY,                                 \
		"an agent's connection has ended")                                                 \
	X(SERVER_THREAD_TICK, "server.thread.tick", FP_SERVER, FP_ANY,                             \
		"each turn of a data thread's loop")                                               \
	X(AGENT_CONTRIB_PREPARE, "agent.contrib.prepare", FP_AGENT, FP_ANY,                        \
		"before the local sum and its crc")                                                \
	X(AGENT_CONTRIB_BEFORE_SEND, "agent.contrib.before-send", FP_AGENT, FP_DROP,               \
		"before a contribution is sent")                                                   \
	X(AGENT_CONTRIB_ECHO, "agent.contrib.echo", FP_AGENT, FP_DROP,                             \
		"drop: it echoes the crc of another result than it was given")                     \
	X(AGENT_HAVE_BEFORE_SEND, "agent.have.before-send", FP_AGENT, FP_DROP,                     \
		"before it says that it has a result")                                             \
	X(AGENT_DONATE_BEFORE_SEND, "agent.donate.before-send", FP_AGENT, FP_DROP,                 \
		"before it donates a result")                                                      \
	X(AGENT_RESULT_RECEIVED, "agent.result.received", FP_AGENT, FP_DROP,                       \
		"a result has arrived or is offered")                                              \
	X(AGENT_READ_START, "agent.read.start", FP_AGENT, FP_ANY, "before a result is read")       \
	X(AGENT_READ_DONE, "agent.read.done", FP_AGENT, FP_ERROR, "a result has been read")        \
	X(AGENT_RESULT_DELIVER, "agent.result.deliver", FP_AGENT, FP_ANY,                          \
		"before a result counts as delivered")                                             \
	X(AGENT_RETRY, "agent.retry", FP_AGENT, FP_ANY, "before it says something again")          \
	X(AGENT_PART_MOVE, "agent.part.move", FP_AGENT, FP_ANY, "a partition has a new place")     \
	X(AGENT_LINK_CONNECT, "agent.link.connect", FP_AGENT, FP_ERROR,                            \
		"before it connects to a server")                                                  \
	X(AGENT_LINK_UP, "agent.link.up", FP_AGENT, FP_ANY, "connected to a server")               \
	X(AGENT_LINK_DOWN, "agent.link.down", FP_AGENT, FP_ANY,                                    \
		"a connection to a server has ended")                                              \
	X(AGENT_TRAINER_HELLO, "agent.trainer.hello", FP_AGENT, FP_ANY,                            \
		"a trainer says who it is")                                                        \
	X(AGENT_TRAINER_DECLARE, "agent.trainer.declare", FP_AGENT, FP_ANY,                        \
		"a trainer declares tensors")                                                      \
	X(AGENT_TRAINER_FINISH, "agent.trainer.finish", FP_AGENT, FP_ANY,                          \
		"a trainer wants to close")                                                        \
	X(AGENT_TRAINER_DROP, "agent.trainer.drop", FP_AGENT, FP_ANY, "a trainer is dropped")      \
	X(AGENT_RING_POLL, "agent.ring.poll", FP_AGENT, FP_DROP,                                   \
		"before a trainer's submissions are looked at")                                    \
	X(AGENT_MEMORY_MAKE, "agent.memory.make", FP_AGENT, FP_ERROR,                              \
		"memory to be shared is made")                                                     \
	X(AGENT_JOB_START, "agent.job.start", FP_AGENT, FP_ANY, "the scheduler starts a job")      \
	X(AGENT_JOB_END, "agent.job.end", FP_AGENT, FP_ANY, "a job has ended")                     \
	X(AGENT_THREAD_TICK, "agent.thread.tick", FP_AGENT, FP_ANY,                                \
		"each turn of the data thread's loop")                                             \
	X(SCHED_LOG_WRITE, "scheduler.log.write", FP_SCHED, FP_ERROR,                              \
		"before a record is written to the state log")                                     \
	X(SCHED_LOG_FSYNC, "scheduler.log.fsync", FP_SCHED, FP_ERROR,                              \
		"written, before the state log is synced")                                         \
	X(SCHED_LOG_RENAME, "scheduler.log.rename", FP_SCHED, FP_ERROR,                            \
		"before a shorter state log takes the place of the long one")                      \
	X(SCHED_COMMIT_BEFORE_PERSIST, "scheduler.commit.before-persist", FP_SCHED, FP_ANY,        \
		"a view has been made, before it is durable")                                      \
	X(SCHED_COMMIT_BEFORE_SEND, "scheduler.commit.before-send", FP_SCHED, FP_ANY,              \
		"a view is durable, before it is told")                                            \
	X(SCHED_COMMIT_SENT, "scheduler.commit.sent", FP_SCHED, FP_ANY, "a view has been told")    \
	X(SCHED_HELLO_RECEIVED, "scheduler.hello.received", FP_SCHED, FP_DROP,                     \
		"a member says who it is")                                                         \
	X(SCHED_BEAT_RECEIVED, "scheduler.beat.received", FP_SCHED, FP_DROP,                       \
		"a member's heartbeat has arrived")                                                \
	X(SCHED_JOIN_RECEIVED, "scheduler.join.received", FP_SCHED, FP_ANY,                        \
		"a worker wants to join a job")                                                    \
	X(SCHED_DECLARE_RECEIVED, "scheduler.declare.received", FP_SCHED, FP_ANY,                  \
		"an agent declares tensors")                                                       \
	X(SCHED_MEMBER_DOWN, "scheduler.member.down", FP_SCHED, FP_ANY, "a member is given up")    \
	X(SCHED_STEER_RECEIVED, "scheduler.steer.received", FP_SCHED, FP_ANY,                      \
		"an operator's order has arrived")                                                 \
	X(MEMBER_BEAT_BEFORE_SEND, "member.beat.before-send", FP_MEMBERS, FP_DROP,                 \
		"before a heartbeat is sent to the scheduler")                                     \
	X(MEMBER_WELCOME, "member.welcome", FP_MEMBERS, FP_ANY, "the scheduler has welcomed it")   \
	X(CONTROL_CONNECT, "control.connect", FP_MEMBERS, FP_ERROR,                                \
		"before it connects to the scheduler")                                             \
	X(CONTROL_SEND, "control.send", FP_DAEMONS, FP_ERROR,                                      \
		"before a message is sent on a control connection")                                \
	X(NET_SEND, "net.send", FP_MEMBERS, FP_ANY,                                                \
		"before a message is put on a data connection")                                    \
	X(NET_READ, "net.read", FP_MEMBERS, FP_ERROR,                                              \
		"before a read of the other's memory is begun")                                    \
	X(NET_ACCEPT, "net.accept", FP_MEMBERS, FP_DROP, "a data connection is asked for")         \
	X(NET_REGISTER, "net.register", FP_MEMBERS, FP_ERROR,                                      \
		"before memory is registered for the network")                                     \
	X(DAEMON_HTTP, "daemon.http", FP_DAEMONS, FP_ANY, "a page is asked for")                   \
	X(DAEMON_READY, "daemon.ready", FP_DAEMONS, FP_ANY, "before it says that it serves")       \
	X(DAEMON_STOP, "daemon.stop", FP_DAEMONS, FP_ANY, "it has been told to stop")              \
	X(CLIENT_CONNECT, "client.connect", FP_CLIENT, FP_ERROR,                                   \
		"before the library connects to the agent")                                        \
	X(CLIENT_HELLO_SENT, "client.hello.sent", FP_CLIENT, FP_ANY,                               \
		"the agent has been told who this is")                                             \
	X(CLIENT_JOINED, "client.joined", FP_CLIENT, FP_ANY, "the job has formed")                 \
	X(CLIENT_MAP, "client.map", FP_CLIENT, FP_ERROR, "before shared memory is mapped")         \
	X(CLIENT_DECLARE_SENT, "client.declare.sent", FP_CLIENT, FP_ANY,                           \
		"tensors have been declared, before the answer")                                   \
	X(CLIENT_SUBMIT_BEFORE_PUBLISH, "client.submit.before-publish", FP_CLIENT, FP_ANY,         \
		"in the ring, before the agent can see it")                                        \
	X(CLIENT_SUBMIT_PUBLISHED, "client.submit.published", FP_CLIENT, FP_ANY,                   \
		"the agent can see what was submitted")                                            \
	X(CLIENT_WAIT, "client.wait", FP_CLIENT, FP_ANY, "before it waits for a sum")              \
	X(CLIENT_WAITED, "client.waited", FP_CLIENT, FP_ANY, "a sum is there")                     \
	X(CLIENT_CLOSE, "client.close", FP_CLIENT, FP_ANY, "before a job is closed")               \
	X(CLIENT_CLOSE_SENT, "client.close.sent", FP_CLIENT, FP_ANY,                               \
		"the agent has been told to close, before all have")

enum failpoint {
#define X(id, name, owner, takes, where) FP_##id,
	FAILPOINTS(X)
#undef X
		FAILPOINT_COUNT
};

/* Set by failpoint_set; a point may see it a little later than another thread does. */
extern _Atomic unsigned char failpoint_armed[FAILPOINT_COUNT];

#define FAILPOINT_DROPPED 1
/* What an armed point does: it may not return, or return late. Returns 0: go on; FAILPOINT_DROPPED:
 * skip the step (only where the table says so); negative: fail with this (only where it says
 * so). */
int failpoint_pass(enum failpoint point);
#define FAILPOINT(id)                                                                              \
	(__builtin_expect(                                                                         \
		 atomic_load_explicit(&failpoint_armed[FP_##id], memory_order_relaxed), 0)         \
			? failpoint_pass(FP_##id)                                                  \
			: 0)

/* Take these faults in place of the former ones; NULL or "": none. Wakes whoever hangs or sleeps at
 * a point. Returns how many points are armed.
 * Errors: -EINVAL, with a sentence; nothing has changed. */
int failpoint_set(const char *text, struct err_text *err);
/* The same check alone. */
int failpoint_check(const char *text, struct err_text *err);
/* The points of these owners (enum failpoint_owner), one per line. */
void failpoint_print(FILE *out, unsigned owners);
#endif
