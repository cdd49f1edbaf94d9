/* Prints bpsctl's output: text or JSON on stdout, and errors on stderr. Ends bpsctl when its time
 * limit is over. One thread. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#include "bps-scheduler/bpsctl/bpsctl.h"
#include "common/daemon/jsontext.h"

#define BOUND_S 2
#define LATE    "no daemon answered within 2 s"

/* With --json, a command prints one document. An error is printed as a document only if the command
 * has not printed a document before. */
static struct {
	bool is_json, has_document;
} answer;

void set_json_output(bool is_json)
{
	answer.is_json = is_json;
}

int print_error_line(const char *text, int status)
{
	fprintf(stderr, "bpsctl: %s\n", text);
	print_error_json(text);
	return status;
}

void print_error_json(const char *text)
{
	json_t *o;

	if (!answer.is_json || answer.has_document)
		return;
	o = json_pack("{s:i, s:o}", "schema", 1, "error", json_text_sanitized(text));
	print_json_line(o);
	json_decref(o);
}

int print_failure(int rc, const struct err_text *err)
{
	bool is_mute = rc == BPS_ENOSCHED || rc == BPS_ETIMEDOUT || rc == BPS_EPROTO ||
		       rc == -EADDRNOTAVAIL || rc == -ENETUNREACH || rc == -EHOSTUNREACH;

	return print_error_line(
		err->s[0] ? err->s : err_str(rc), is_mute ? EXIT_UNREACHABLE : EXIT_ERR);
}

int print_document(
	const struct bpsctl_opts *o, json_t *root, int (*screen)(FILE *out, json_t *root))
{
	char *text = NULL;
	size_t n = 0;
	FILE *out = open_memstream(&text, &n);
	int status;

	if (o->verbose && !o->json)
		json_object_set_new(root, "verbose", json_true());
	status = out ? screen(out, root) : EXIT_ERR;

	if (!out || fclose(out) != 0) {
		status = print_error_line("out of memory", EXIT_ERR);
	} else if (o->json) {
		answer.has_document = true;
		json_dumpf(root, stdout, JSON_INDENT(2));
		putchar('\n');
	} else {
		fputs(text, stdout);
	}
	free(text);
	json_decref(root);
	return status;
}

int print_answer(const struct bpsctl_opts *o, const char *text, json_t *doc)
{
	if (o->json)
		print_json_line(doc);
	else
		printf("%s\n", text);
	json_decref(doc);
	return 0;
}

void print_json_line(json_t *o)
{
	answer.has_document = true;
	json_dumpf(o, stdout, JSON_COMPACT);
	putchar('\n');
	fflush(stdout);
}

/* Signal handler that ends bpsctl when its time limit is over. A signal is necessary because the
 * resolver has no time limit that bpsctl could set. */
static void on_time_limit_alarm(int sig)
{
	static const char text[] = "bpsctl: " LATE "\n";
	static const char json[] = "{\"schema\":1,\"error\":\"" LATE "\"}\n";
	ssize_t n = write(STDERR_FILENO, text, sizeof(text) - 1);

	if (answer.is_json && !answer.has_document)
		n = write(STDOUT_FILENO, json, sizeof(json) - 1);

	(void)sig;
	(void)n;
	_exit(EXIT_UNREACHABLE);
}

void query_time_limit_set(bool is_bounded)
{
	struct itimerval t = {.it_value = {.tv_sec = is_bounded ? BOUND_S : 0}};

	signal(SIGALRM, on_time_limit_alarm);
	setitimer(ITIMER_REAL, &t, NULL);
}
