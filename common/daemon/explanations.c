/* The table of explanations (explanations.h). */
#include "common/daemon/explanations.h"

#include <string.h>

#include "common/base/error.h"

#define ERROR_ROW(name) #name, name, 0

const struct explanation explanations[] = {
	{"STATE_NOT_DURABLE", 0, BY_SCHEDULER, "the scheduler cannot write its state",
		"running jobs go on; the scheduler accepts no new jobs or members, and does not "
		"move the partitions of a lost server",
		"see the scheduler's log; free or repair the disk of its --state-dir"},
	{"STATE_BEHIND", 0, BY_SCHEDULER,
		"the scheduler started with a state log that is older than the state of its "
		"members: the log was cut, or replaced by an older copy; shown for an hour",
		"earlier jobs have ended with BPS_EJOB_FAILED, because the lost part of the log "
		"may have moved their partitions; mutes and drains in that part are lost, too",
		"start the jobs again; check whether the disk of --state-dir loses synced data"},
	{"NO_SERVER", 0, BY_SCHEDULER, "partitions wait for a server, and there is none",
		"rounds of their jobs do not complete; calls that have waited for ten seconds end "
		"with BPS_ENOSERVER",
		"start bps-server on some machine, with --scheduler set to this scheduler"},
	{"SERVER_DOWN", 0, BY_SCHEDULER, "a server is dead",
		"its partitions have moved to other servers, and no round was lost; if there is no "
		"other server, they wait (NO_SERVER)",
		"see its log on its host (`systemctl status bps-server` with the units, `kubectl "
		"logs` of its pod, --log-dir of bpsrun); no action is needed if the machine was "
		"removed for good"},
	{"AGENT_DOWN", 0, BY_SCHEDULER, "an agent is dead; shown for ten minutes",
		"jobs that ran there have ended with BPS_EAGENT_LOST; jobs that may shrink go on "
		"without the machine",
		"see its log on its host (`systemctl status bps-agent` with the units, `kubectl "
		"logs` of its pod, --log-dir of bpsrun), then start the jobs again"},
	{"THREADS_FEW", 0, BY_SCHEDULER,
		"the threads of an agent that send, receive and sum are full, while processors of "
		"the machine are idle",
		"the machine exchanges less than its network cards can carry",
		"set `threads` of that agent to the number in the message, or `nic-speed` to the "
		"speed of its network cards, which the driver does not report; restart the agent"},
	{"CONTROL_SILENT", 0, BY_SCHEDULER,
		"the scheduler has lost its connection to a member, or receives nothing from the "
		"member",
		"running jobs go on; the scheduler declares the member dead after --server-dead or "
		"--agent-dead",
		"wait; if the member does not return, see its log, and check the network between "
		"the member and the scheduler"},
	{"MEMBER_STUCK", 0, BY_SCHEDULER | BY_MEMBER,
		"a member answers, but one of its threads makes no progress",
		"rounds may wait for this member",
		"the member's watchdog restarts it; without a service manager, restart it by hand"},
	{"JOB_FORMING_LONG", 0, BY_SCHEDULER, "a job has waited for workers for a minute",
		"workers that have joined wait in bps_open until their time-out",
		"start the missing ranks, or see their own output; `bpsctl why-stuck JOB` names "
		"them"},
	{"STRAGGLER", 0, BY_SCHEDULER,
		"one machine is last in most rounds of a job, by a significant time; or many "
		"workers have waited for half a second for a few that have not submitted",
		"each step takes as long as the slowest worker",
		"check the named machine or process; `bpsctl advise JOB` says how much time it "
		"costs, and `bpsctl job JOB` shows the round of each worker"},
	{"TRAINER_STALLED", 0, BY_SCHEDULER,
		"a worker has not submitted a tensor for which others have waited for ten seconds",
		"the calls of the other workers wait until their time-outs",
		"check the named process on its host: it may hang, be stopped, or wait for "
		"something else"},
	{"SERVER_SLOW", 0, BY_SCHEDULER,
		"for three heartbeats, a server has taken longer than the scheduler's "
		"--server-slow from the last contribution to the sum",
		"rounds of its partitions take longer by that time",
		"check the load of its machine; `bpsctl drain SERVER` moves its partitions to "
		"others"},
	{"CONNECTION_UNSTABLE", 0, BY_SCHEDULER,
		"an agent has lost a data connection to a server at least three times in five "
		"minutes, although both are up",
		"rounds wait while the agent connects again; they may end with BPS_ETIMEDOUT",
		"run `bpsctl check` on the agent's machine: it reports a path that passes small "
		"packets and drops large ones (a wrong MTU); the agent's log has the reason of "
		"each loss"},
	{"MASTER_KEY", 0, BY_SCHEDULER, "a server or an agent uses the cluster's master key",
		"every key is derived from the master key: a user who reads it on that host can "
		"pose as any member and operate the cluster",
		"give the member the key of its name (`bpsctl key derive ROLE:NAME`) and reload "
		"the member; if other users may have read the master key, rotate it"},
	{"HOST_DUPLICATE", 0, BY_SCHEDULER,
		"two machines have the same host name: their boot ids or their domains differ",
		"a server or an agent of the second machine is refused while the first one holds "
		"its name; if the two have daemons of different roles or names, the scheduler "
		"counts them as one machine",
		"give one of the machines another host name, or set --name and --host of its "
		"daemons; a machine that was booted again joins when its former daemons are "
		"declared dead"},
	{"HOST_MEMORY", 0, BY_SCHEDULER,
		"the servers and agents of a host may together take more memory than it has",
		"the kernel may kill one of these daemons when the memory is used up; the "
		"scheduler counts only a part of the memory limit of each server on that host",
		"lower --sums-memory of the servers or --memory of the agents on that host"},
	{"NO_ANSWER", 0, BY_SCHEDULER,
		"an agent of a running job did not report its workers' rounds within a second",
		"bpsctl cannot show what its workers wait for; if the agent hangs, rounds of its "
		"jobs wait",
		"check the agent on its host; the scheduler declares a hung agent dead after "
		"--agent-dead"},
	{"SCHEDULER_UNREACHABLE", 0, BY_MEMBER,
		"a server or an agent has no connection to the scheduler",
		"running jobs go on; new jobs, and the replacement of lost servers, wait",
		"start bps-scheduler; check --scheduler, and the network between the daemon and "
		"the scheduler"},
	{"ISOLATED", 0, BY_AGENT,
		"for its --stranded-after, an agent has received nothing from the scheduler or any "
		"server",
		"waiting calls end with BPS_EISOLATED; their rounds are still in flight, and a "
		"call may wait for them again",
		"check the network of that machine"},
	{"HANG", 0, BY_ADVICE, "calls wait for so long that no step of the job will end soon",
		"no step ends until the missing workers have come",
		"`bpsctl why-stuck JOB` names the tensor and the missing workers"},
	{"ENDED", 0, BY_ADVICE, "the job has ended",
		"where the time of its steps went is no longer known",
		"`bpsctl job JOB` shows how it ended; the logs of its agents have the last "
		"steps of a job that failed"},
	{"NOT_KNOWN", 0, BY_ADVICE, "the agents do not know where the time of the job's steps goes",
		"there is no advice",
		"ask again after some steps; for tensors in GPU memory use the framework's "
		"profiler"},
	{"COMPUTING", 0, BY_ADVICE, "less than 5 % of a step is exposed communication",
		"a faster network or more servers shorten no step", "make the computation faster"},
	{"LATE_MACHINE", 0, BY_ADVICE, "one machine comes last in most of the steps",
		"the other machines wait for it in each step",
		"look at its load, clock and input files; backup machines (BPS_BACKUP) let "
		"three or more machines go on"},
	{"SLOW_CARD", 0, BY_ADVICE,
		"the network card of one machine is slower than those of the other machines",
		"all machines wait for its contributions",
		"look at the speed of the card, its cable and its port, or send fewer bytes "
		"(docs/guides/fewer-bytes.md)"},
	{"FULL_CARD", 0, BY_ADVICE,
		"a network card needs most of the time in which the calls wait for the "
		"network",
		"the card limits the steps",
		"send fewer bytes (docs/guides/fewer-bytes.md); if it is the card of a "
		"server, add servers (docs/guides/plan.md)"},
	{"SLOW_SERVER", 0, BY_ADVICE,
		"a server takes three times as long for a sum as the median server",
		"the calls wait for its sums",
		"look at its load; `bpsctl drain` moves its partitions away"},
	{"SUMS", 0, BY_ADVICE, "the calls wait for the sums of the servers",
		"the processors of the servers limit the steps",
		"add as many servers as there are now"},
	{"LOCAL", 0, BY_ADVICE, "workers of one machine wait for each other",
		"the machine is as fast as its slowest worker",
		"compare their input files, processors and GPUs"},
	{"SMALL_TENSORS", 0, BY_ADVICE, "an agent needs long to start on many small tensors",
		"their contributions wait in the agent",
		"let the front-end join small tensors: bucket_bytes of DistributedOptimizer"},
	{"QUEUE", 0, BY_ADVICE, "contributions wait in an agent before they are sent",
		"the threads of the agent, or a limit, delay the steps",
		"give the agent more threads (`threads` in bps.conf), or raise job-inflight"},
	{"SPREAD", 0, BY_ADVICE, "part of a step is exposed, but no single cause stands out",
		"several causes add up",
		"look at the columns of `bpsctl job`, or at a trace (`bpsctl trace`)"},
	{ERROR_ROW(BPS_ETIMEDOUT), "a wait has reached its time-out",
		"the round is still in flight, and a call may wait for it again",
		"check the workers that the message names; `bpsctl why-stuck JOB` names them, too"},
	{ERROR_ROW(BPS_EBUSY),
		"a push_pull of this tensor is in flight, or another thread is in a collective",
		"the call did nothing", "wait for the first call before the next"},
	{ERROR_ROW(BPS_EMISMATCH),
		"workers disagree about a tensor's type, count or digest, an operation, or the "
		"job's size or settings",
		"the tensor is refused for all workers, the worker that joined later is refused, "
		"or the job ends",
		"the message names two workers and their values: run the same program on both"},
	{ERROR_ROW(BPS_ENOSERVER), "for its --stranded-after, the agent has had no server",
		"waiting calls end with this error; the round is still in flight, and a call may "
		"wait for it again",
		"start bps-server; `bpsctl servers` lists the known servers"},
	{ERROR_ROW(BPS_ENOSCHED), "the scheduler cannot be reached",
		"running jobs go on; new jobs, and the replacement of lost servers, wait",
		"start bps-scheduler, and check that --scheduler points to it"},
	{ERROR_ROW(BPS_ENOAGENT), "this machine's agent cannot be reached, or has ended",
		"workers on this machine cannot join or go on",
		"check that bps-agent runs, and that this user may open its socket"},
	{ERROR_ROW(BPS_EWORKER_LOST),
		"a worker has ended without leaving the job, or has left it while others waited "
		"for it",
		"the job ends for all its workers; jobs that may shrink go on without its machine",
		"see that worker's own output first; let all workers make the same number of "
		"steps"},
	{ERROR_ROW(BPS_EAGENT_LOST),
		"a machine was silent for longer than --agent-dead, or its agent did not return "
		"within --agent-window",
		"its jobs end; jobs that may shrink go on without the machine",
		"see the log of its agent (`systemctl status bps-agent` with the units, `kubectl "
		"logs` of its pod, --log-dir of bpsrun), then check its network"},
	{ERROR_ROW(BPS_EEVICTED), "the job's other machines went on without this machine",
		"the workers of this machine cannot go on in this job", "start the workers again"},
	{ERROR_ROW(BPS_EINPUT_CHANGED),
		"a worker wrote to a tensor's input while a round of the tensor was in flight",
		"the job ends: its sums would be wrong",
		"submit copies (bps_push_pull_copy), or wait before writing"},
	{ERROR_ROW(BPS_EDIVERGED), "machines report different results of the same round",
		"the job ends",
		"this should be impossible: check memory and network for faults, and report a bug"},
	{ERROR_ROW(BPS_EQUOTA), "a request exceeds a limit", "the request is refused",
		"the message has the limit and the present use; request less, or raise the "
		"setting"},
	{ERROR_ROW(BPS_EPROTO), "a peer broke the protocol, or belongs to another program",
		"its connection is closed", "check the address and the port"},
	{ERROR_ROW(BPS_EVERSION), "the versions of two programs are not compatible",
		"the program that connects is refused",
		"the message has the two versions: install the same release"},
	{ERROR_ROW(BPS_EAUTH), "a key, or a job's token, is wrong or missing",
		"the connection is refused",
		"give the daemon the key of its role and name (`bpsctl key derive`) with "
		"--key-file; give all workers of a job the same BPS_JOB_TOKEN"},
	{ERROR_ROW(BPS_ENOTFOUND), "there is no such job or object", "the call did nothing",
		"`bpsctl jobs` lists the existing jobs"},
	{ERROR_ROW(BPS_EDUP), "a rank, or the name of a daemon, is already taken",
		"the second worker or daemon is refused",
		"the message names the present holder; choose another rank or --name"},
	{ERROR_ROW(BPS_ECLOSED), "the job or the connection is closed", "the call did nothing",
		"open the job again"},
	{ERROR_ROW(BPS_EFORKED), "the handle belongs to the parent process of a fork",
		"the call did nothing", "open the job in the child"},
	{ERROR_ROW(BPS_ENOTDURABLE), "the scheduler cannot write its state",
		"the scheduler accepts no new jobs or members",
		"check the disk of its --state-dir"},
	{ERROR_ROW(BPS_EJOB_FAILED), "the job has failed", "all its workers get this error",
		"the message has the cause; `bpsctl job JOB` shows it for a while"},
	{ERROR_ROW(BPS_EROUND_LOST), "a round was lost with its server", "the job ends",
		"this release does not report this error, because its agents keep what a new "
		"server needs"},
	{ERROR_ROW(BPS_EDEVICE), "a GPU, or the process that drives it for the job, failed",
		"if bps_gpu_open returns this error, the job continues; otherwise the job ends, or "
		"goes on without that machine if it may shrink",
		"read the driver's error in the message; look for Xid in the kernel's log"},
	{ERROR_ROW(BPS_EISOLATED),
		"for its --stranded-after, an agent has received nothing from the scheduler or any "
		"server",
		"waiting calls end with this error; the round is still in flight, and a call may "
		"wait for it again",
		"check the network of that machine"},
	{ERROR_ROW(BPS_EDRAINED), "an operator has drained the agent of this machine",
		"the agent accepts no new jobs; its running jobs go on",
		"use other machines; `bpsctl agents` shows who drained it and why"},
	{NULL, 0, 0, NULL, NULL, NULL},
};

const struct explanation *explanation_find(const char *code)
{
	const struct explanation *e = explanations;

	while (e->code && (strcmp(e->code, code) != 0 || !(e->reporter & BY_SCHEDULER)))
		e++;
	return e->code ? e : NULL;
}
