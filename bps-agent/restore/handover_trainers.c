/* Restores the trainers of the previous process (handover_read.h). Thread: runs before the data
 * thread starts. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bps-agent/restore/handover_read_impl.h"
#include "bps-agent/trainers/accept.h"
#include "bps-agent/trainers/hello.h"
#include "bps-agent/trainers/trainer.h"

void handover_drop_stored_fds(char kind, uint64_t number, const char *parts)
{
	char name[FDSTORE_NAME_BYTES];

	for (; *parts; parts++) {
		snprintf(name, sizeof(name), "%c%" PRIu64 ".%c", kind, number, *parts);
		fdstore_remove(name);
	}
}

struct trainer *handover_restore_trainer(struct agent *a, int sock, int pidfd, uint64_t number)
{
	struct trainer *t = calloc(1, sizeof(*t));
	struct quota_account *user = NULL;
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (t && getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0)
		user = quota_get_user_account(a->quota, cred.uid);
	if (!user) {
		free(t);
		close(sock);
		if (pidfd >= 0)
			close(pidfd);
		return NULL;
	}
	fcntl(sock, F_SETFL, O_NONBLOCK);
	trainer_name_user(a, user, cred.uid);
	quota_charge(user, QUOTA_TRAINERS, 1);
	quota_charge(user, QUOTA_DESCRIPTORS, TRAINER_FDS);
	trainer_register(a, user, &cred, sock, pidfd, number, t);
	t->has_kept_socket = t->may_repeat_message = true;
	return t;
}

/* Check that the trainer's library, which outlives this agent's previous process, can go on with
 * this process. The control page begins with its magic number and its version in every release. */
static int handover_check_abi(struct handover_reader *r, int control_fd)
{
	uint32_t head[2];

	if (pread(control_fd, head, sizeof(head), 0) != sizeof(head) || head[0] != LOCAL_MAGIC)
		return handover_contradicts(r, "a trainer's control page");
	if (head[1] == LOCAL_ABI)
		return 0;
	return err_set(&r->err, BPS_EVERSION,
		"the trainer's libbpsclient uses protocol version %u, but this bps-agent %s uses "
		"version %u",
		head[1], BPS_VERSION, LOCAL_ABI);
}

static int trainer_map_control(struct trainer *t, int fd, uint64_t bytes)
{
	struct stat st;
	void *p;

	if (fstat(fd, &st) < 0 || (uint64_t)st.st_size != bytes ||
		bytes != local_control_bytes(t->sq_entries, t->max_tensors))
		return BPS_EPROTO;
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return -errno;
	t->control = p;
	t->control_bytes = bytes;
	quota_charge(t->user, QUOTA_MEMORY, bytes);
	return 0;
}

void handover_describe_lost_job(const char *why, struct err_text *ret)
{
	err_set(ret, 0,
		"bps-agent was restarted and cannot continue this job: %s: start the job again",
		why);
}

void handover_drop_trainer(struct trainer *t, const char *text)
{
	trainer_send_job_failure(t, BPS_EJOB_FAILED, text, NULL);
	trainer_disconnect(t, false, text);
}

/* Attach the trainer to its job again. Repeats WELCOME if the trainer may not have received it. */
static int trainer_reattach_to_job(struct handover_reader *r, struct trainer *t,
	const struct ledger_trainer *k, struct ledger_trainer_live *live, int control_fd)
{
	struct agent *a = r->a;
	int rc = handover_check_abi(r, control_fd);

	if (rc < 0)
		return rc;
	t->sq_entries = k->sq_entries;
	t->max_tensors = k->max_tensors;
	if (k->sq_entries > LOCAL_SQ_MAX || (k->sq_entries & (k->sq_entries - 1)) ||
		!k->max_tensors || k->max_tensors > k->sq_entries ||
		trainer_map_control(t, control_fd, k->control_bytes) < 0)
		return handover_contradicts(r, "a trainer's control page");
	t->tensors = calloc(k->max_tensors, sizeof(struct tensor *));
	if (!t->tensors)
		return err_set(&r->err, -ENOMEM, "the agent is out of memory");
	t->live = live;
	/* The previous process ended between the two steps of barrier_accept_request: it recorded
	 * the barrier, but not that the message was handled. */
	if (live->barrier_seq && (int32_t)(live->barrier_seq - live->handled_seq) > 0)
		live->handled_seq = live->barrier_seq;
	t->sq_head = live->sq_head;
	t->asked_rank = t->rank = k->asked_rank;
	t->part_bytes = k->part_bytes;
	t->join_seq = k->join_seq;
	t->may_repeat_submission = true;
	t->may_have_passed = true;
	if (a->next_seq < k->join_seq)
		a->next_seq = k->join_seq;
	uv_timer_stop(&t->greeting);
	trainer_listen_event(t);
	t->job = r->job;
	TAILQ_INSERT_TAIL(&r->job->trainers, t, of_job);
	trainer_set_state(t, TRAINER_JOINING);
	/* the previous process has recorded no answer, so the trainer may not have received
	 * WELCOME */
	if (live->handled_seq == 0)
		trainer_welcome(t, k->hello_seq, control_fd);
	return 0;
}

/* Note a trainer that has finished and left. */
static int handover_record_left(struct handover_reader *r, uint64_t number)
{
	uint64_t *more = realloc(r->left, (r->n_left + 1) * sizeof(*more));

	if (!more)
		return err_set(&r->err, -ENOMEM, "the agent is out of memory");
	r->left = more;
	more[r->n_left++] = number;
	return 0;
}

int handover_read_trainer(struct handover_reader *r, const struct ledger_record *rec)
{
	const struct ledger_trainer *k = rec->fixed;
	const struct ledger_trainer_live *live = rec->live;
	struct trainer *t = NULL;
	struct err_text text;
	int sock, efd, control_fd, pidfd, rc = 0;

	if (rec->n_fixed != sizeof(*k) || rec->n_live != sizeof(struct ledger_trainer_live))
		return handover_contradicts(r, "a trainer");
	sock = handover_take_fd(r->store, 't', k->number, 's');
	efd = handover_take_fd(r->store, 't', k->number, 'e');
	control_fd = handover_take_fd(r->store, 't', k->number, 'c');
	pidfd = handover_take_fd(r->store, 't', k->number, 'p');
	if (sock >= 0 && efd >= 0 && control_fd >= 0) {
		t = handover_restore_trainer(r->a, sock, pidfd, k->number);
		sock = pidfd = -1;
	}
	if (t) {
		t->efd = efd;
		efd = -1;
		rc = trainer_reattach_to_job(r, t, k, rec->live, control_fd);
		if (rc < 0 && !t->job) {
			handover_describe_lost_job(r->err.s, &text);
			handover_drop_trainer(t, text.s);
		}
	}
	for (int *fd = (int[]){sock, efd, control_fd, pidfd, -2}; *fd != -2; fd++)
		if (*fd >= 0)
			close(*fd);
	if (t)
		return rc;
	/* If descriptors are missing, the trainer has left. Otherwise handover_restore_trainer has
	 * failed. In both cases, the trainer's rank in the job stays empty. */
	handover_drop_stored_fds('t', k->number, "spec");
	return live->is_finishing ? handover_record_left(r, k->number) : 0;
}
