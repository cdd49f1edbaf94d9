/* The screens of bpsctl. Whatever document a daemon sends, the output must be lines without control
 * characters, which could affect the terminal. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/bpsctl/checks.h"
#include "bps-scheduler/bpsctl/explain.h"
#include "bps-scheduler/bpsctl/screen.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void print_document(int (*screen)(FILE *out, json_t *root), json_t *root)
{
	char *text = NULL;
	size_t n = 0;
	FILE *out = open_memstream(&text, &n);
	int status;

	if (!out)
		abort();
	status = screen(out, root);
	fclose(out);
	if (status < 0 || status > 2 || strlen(text) != n)
		abort();
	for (const char *p = text; *p; p++)
		if (((unsigned char)*p < ' ' && *p != '\n') || *p == 0x7f)
			abort();
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	static int (*const screens[])(FILE * out, json_t * root) = {screen_status, screen_daemon,
		screen_servers, screen_agents, screen_jobs, screen_job, screen_stuck, screen_events,
		screen_explain, screen_check};
	json_t *root = json_loadb((const char *)data, n_bytes, JSON_REJECT_DUPLICATES, NULL);

	for (size_t i = 0; root && i < sizeof(screens) / sizeof(screens[0]); i++)
		print_document(screens[i], root);
	json_decref(root);
	return 0;
}
