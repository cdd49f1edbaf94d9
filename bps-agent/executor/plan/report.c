#include "bps-agent/executor/plan/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void topo_report_format(const struct topo_report *r, bool has_cliques, char ret[REPORT_LINE_BYTES])
{
	char uuid[2 * sizeof(r->uuid) + 1], name[TOPO_NAME_BYTES];

	for (size_t i = 0; i < sizeof(r->uuid); i++)
		snprintf(uuid + 2 * i, 3, "%02x", r->uuid[i]);
	snprintf(name, sizeof(name), "%s", *r->name ? r->name : "?");
	for (char *s = name; *s; s++)
		*s = *s < ' ' || *s > '~' ? '?' : *s;
	snprintf(ret, REPORT_LINE_BYTES, "%.19s %s %d %" PRIx64 " %" PRIx64 " %d %s",
		*r->pci ? r->pci : "-", uuid, (int)r->numa, r->links, r->peers, has_cliques, name);
}

/* Read the next word of *s and advance *s. Returns false if there is no word, or if the word is too
 * long. */
static bool report_take_word(const char **s, char *ret, size_t room)
{
	size_t n = strcspn(*s, " ");

	if (n == 0 || n >= room || !(*s)[n])
		return false;
	memcpy(ret, *s, n);
	ret[n] = '\0';
	*s += n + 1;
	return true;
}

static bool report_take_number(const char **s, int base, long long least, uint64_t *ret)
{
	char word[24], *end;

	if (!report_take_word(s, word, sizeof(word)) || strchr(word, '+') ||
		(least >= 0 && *word == '-'))
		return false;
	*ret = base == 16 ? strtoull(word, &end, 16) : (uint64_t)strtoll(word, &end, 10);
	return !*end && (base == 16 || (int64_t)*ret >= least);
}

static bool report_take_uuid(const char **s, uint8_t ret[16])
{
	char word[33], pair[3] = "", *end;

	if (!report_take_word(s, word, sizeof(word)) || strlen(word) != 32)
		return false;
	for (size_t i = 0; i < 16; i++) {
		memcpy(pair, word + 2 * i, 2);
		if (strspn(pair, "0123456789abcdef") != 2)
			return false;
		ret[i] = (uint8_t)strtoul(pair, &end, 16);
	}
	return true;
}

bool topo_report_parse(const char *line, struct topo_report *ret, bool *ret_has_cliques)
{
	struct topo_report r = {.numa = -1};
	uint64_t numa, cliques, unused;

	if (!report_take_word(&line, r.pci, sizeof(r.pci)) ||
		(strcmp(r.pci, "-") != 0 && !topo_pci_parse(r.pci, &unused)) ||
		!report_take_uuid(&line, r.uuid) || !report_take_number(&line, 10, -1, &numa) ||
		!report_take_number(&line, 16, 0, &r.links) ||
		!report_take_number(&line, 16, 0, &r.peers) ||
		!report_take_number(&line, 10, 0, &cliques) || (int64_t)numa > 1023 ||
		cliques > 1 || !*line)
		return false;
	r.numa = (int32_t)numa;
	snprintf(r.name, sizeof(r.name), "%s", line);
	*ret = r;
	*ret_has_cliques = cliques == 1;
	return true;
}
