#ifndef BPS_COMMON_DAEMON_EXPLANATIONS_H
#define BPS_COMMON_DAEMON_EXPLANATIONS_H
/* Texts of all problems and errors: what has happened, the effect, and the action to take.
 * `bpsctl explain` prints the table. The status of a daemon takes from it the codes of the daemon's
 * problems, and each text that does not depend on the case. */

/* Daemons that report a problem. BY_ADVICE: `bpsctl advise` reports it. 0: the row explains an
 * error. */
enum explanation_reporter { BY_SCHEDULER = 1, BY_SERVER = 2, BY_AGENT = 4, BY_ADVICE = 8 };
#define BY_MEMBER (BY_SERVER | BY_AGENT)

struct explanation {
	const char *code;
	int number;        /* error number; 0: the row explains a problem */
	unsigned reporter; /* enum explanation_reporter, or several of them */
	const char *what, *effect, *action;
};

/* The problems of the scheduler come first, most important first. The last row has the code
 * NULL. */
extern const struct explanation explanations[];

/* Find the problem of the scheduler with this code. NULL: there is none. */
const struct explanation *explanation_find(const char *code);
#endif
