#ifndef BPS_TESTS_FAKE_AGENT_H
#define BPS_TESTS_FAKE_AGENT_H
/* A fake agent for unit tests of the client library. A thread serves the protocol of
 * common/local/local.h at a socket. The agent sums f32, f64 and integers for the trainers of one
 * job, and misbehaves when the test orders it. Fields that a test may read while the agent runs are
 * atomic. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/local/local.h"

#define TENSORS_MAX  512
#define TRAINERS_MAX 4
#define WAIT_MS      20000

enum fake_cmd {
	FAKE_NONE,
	FAKE_STOP,
	FAKE_DIE,
	FAKE_FAIL_JOB,
	FAKE_GARBAGE,
	FAKE_STRAY_ARENA,
	FAKE_SPEAK
};

struct fake_tensor {
	char name[256];
	uint8_t dtype;
	uint64_t n_elems;
	int out_fd;
	size_t slot_bytes;
	char *out;
	uint8_t op;
};

struct fake_slot {
	char *in;
	uint64_t submitted, done;
	bool abstains; /* the submission has no values */
	bool has_out;
};

struct fake_trainer {
	int sock, event_fd;
	struct local_control *_Atomic c;
	uint32_t head, rank, next_arena;
	_Atomic uint16_t last_priority[TENSORS_MAX];
	struct fake_slot slots[TENSORS_MAX];
};

struct fake_agent {
	/* Behaviour of the agent. Set these fields before fake_agent_start. */
	uint32_t refuse_code; /* code in WELCOME */
	bool holds_job;       /* never reports that all workers have joined the job */
	bool is_mute;         /* completes no round until FAKE_SPEAK */
	bool keeps_quiet;     /* does not answer the question WHY */
	bool spoils_control;  /* writes a wrong magic number into the control page */
	bool is_unsealed;     /* makes a control page that is not sealed against shrinking */
	bool misplaces_slots; /* reports slots outside of the arena */
	bool refuses_finish;
	bool is_old; /* behaves like an agent that does not support LOCAL_ASK_TRAFFIC */
	/* sends most messages twice, like an agent that was restarted after a crash */
	bool repeats;
	unsigned n_deaths;        /* number of connections that the agent ends at HELLO */
	const char *refused_name; /* name of a tensor that the agent refuses with EQUOTA */
	/* name of a tensor whose rounds the agent ends with EMISMATCH */
	const char *mismatch_name;
	const char *_Atomic mute_name; /* name of a tensor whose rounds the agent holds back */
	const char *why;
	/* cause of a round's failure; the agent states this cause in its answer to WHY */
	struct ctl_cause cause;

	char dir[64], path[96];
	int listener, cmd_fd, ack_fd;
	_Atomic int cmd;
	pthread_t thread;
	struct fake_trainer trainers[TRAINERS_MAX];
	uint32_t n_trainers, n_welcome, n_finished;
	_Atomic uint32_t size;
	uint32_t finish_seq[TRAINERS_MAX];
	struct fake_tensor tensors[TENSORS_MAX];
	uint32_t n_tensors;
	_Atomic uint32_t whys, submissions;
};

struct fake_agent *fake_agent_new(void);
/* Start the agent. When the call returns, the agent listens at f->path. */
void fake_agent_start(struct fake_agent *f);
/* Send the agent the order `cmd`. Returns when the agent has executed the order. */
void fake_agent_order(struct fake_agent *f, enum fake_cmd cmd);
/* Stop and free the agent. Call it only after fake_agent_start. */
void fake_agent_free(struct fake_agent *f);
#endif
