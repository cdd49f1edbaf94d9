/* The order that a bpsrun sends to one on another host. It travels over standard input, so that the
 * key and the variables are in no command line, and no shell has to quote anything. Standard input
 * stays open: its end ends the node (process/guard.h).
 *
 *   "bpsrun 1", key or "", folder, number of variables, the variables, number of arguments, the
 *   arguments; each one ends with a zero byte
 *
 * One thread. */
#include "libbpsclient/tools/bpsrun.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ORDER_MAGIC "bpsrun 1"
#define ORDER_BYTES ((size_t)1 << 20)
#define WORDS_MAX   65536

static int send_word(int fd, const char *word)
{
	size_t left = strlen(word) + 1;
	ssize_t n;

	while (left) {
		n = write(fd, word, left);
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0) {
			word += n;
			left -= (size_t)n;
		}
	}
	return 0;
}

static int send_words(int fd, const char *const *words)
{
	char count[24];
	unsigned n = 0;
	int rc;

	while (words[n])
		n++;
	snprintf(count, sizeof(count), "%u", n);
	rc = send_word(fd, count);
	for (unsigned i = 0; !rc && i < n; i++)
		rc = send_word(fd, words[i]);
	return rc;
}

int remote_order_send(int fd, const struct remote_order *order)
{
	int rc = send_word(fd, ORDER_MAGIC);

	if (!rc)
		rc = send_word(fd, order->key_hex);
	if (!rc)
		rc = send_word(fd, order->folder);
	if (!rc)
		rc = send_words(fd, order->env);
	return rc < 0 ? rc : send_words(fd, order->args);
}

/* ---- the other side ---- */

/* The received bytes, which stay for the whole run: the options point into them. */
struct order_text {
	char *at, *end;
};

/* Read one word, byte by byte, because what follows the order belongs to the guard. Returns NULL
 * when standard input ends, or the order is too long. */
static char *receive_word(struct order_text *t)
{
	char *word = t->at;
	ssize_t n;

	while (t->at < t->end) {
		n = read(STDIN_FILENO, t->at, 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return NULL;
		if (!*t->at++)
			return word;
	}
	return NULL;
}

/* Receive a number of words. words: room for `room` words and a NULL. Returns their number; -1:
 * there are not as many. */
static int receive_words(struct order_text *t, char **words, int room)
{
	const char *count = receive_word(t);
	int n = count ? atoi(count) : -1;

	if (n < 0 || n > room)
		return -1;
	for (int i = 0; i < n; i++) {
		words[i] = receive_word(t);
		if (!words[i])
			return -1;
	}
	words[n] = NULL;
	return n;
}

static int receive_order(struct order_text *t, struct bpsrun *r, char **words, int *ret_n)
{
	const char *magic = receive_word(t), *key, *folder;
	int n;

	if (!magic || strcmp(magic, ORDER_MAGIC) != 0)
		return -EPROTO;
	key = receive_word(t);
	folder = key ? receive_word(t) : NULL;
	n = folder ? receive_words(t, words, WORDS_MAX) : -1;
	if (n < 0)
		return -EPROTO;
	if (*key && cluster_key_parse(key, "the key on standard input", &r->key) < 0)
		return -EINVAL;
	r->has_key = *key != 0;
	if (chdir(folder) < 0)
		output_print_message(
			"cannot enter the folder '%s' on this host: %s; the command runs "
			"in the user's home",
			folder, strerror(errno));
	for (int i = 0; i < n; i++)
		putenv(words[i]);
	*ret_n = receive_words(t, words + 1, WORDS_MAX);
	return *ret_n < 0 ? -EPROTO : 0;
}

int remote_take_order(struct bpsrun *r)
{
	char *text = malloc(ORDER_BYTES), **words = calloc(WORDS_MAX + 2, sizeof(*words));
	struct order_text t = {.at = text, .end = text ? text + ORDER_BYTES : NULL};
	int n = 0, rc = text && words ? receive_order(&t, r, words, &n) : -ENOMEM;

	if (rc < 0) {
		output_print_message(
			"--stdin is for a bpsrun that another one has started with -H, of the same "
			"release: standard input has no order");
		free(text);
		free(words);
		return rc;
	}
	r->order_text = text;
	r->order_words = words;
	words[0] = ARG("bpsrun");
	optind = 0; /* getopt_long begins again */
	rc = bpsrun_options_parse(n + 1, words, &r->o);
	r->o.from_stdin = true;
	return rc > 0 ? -EINVAL : rc;
}
