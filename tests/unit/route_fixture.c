#include "tests/unit/route_fixture.h"

#include <stdio.h>
#include <string.h>

static void one_group(struct route *s)
{
	s->n_groups = 1;
	s->groups[0].n = s->n_members;
	for (uint8_t i = 0; i < s->n_members; i++)
		s->groups[0].member[i] = i;
}

static void groups_of_one(struct route *s)
{
	s->n_groups = s->n_members;
	for (uint8_t i = 0; i < s->n_members; i++)
		s->groups[i] = (struct route_group){1, {i}};
}

static bool is_apart(const int *switches, uint8_t a, uint8_t b)
{
	return switches && switches[a] != switches[b];
}

static void groups_by_switch(struct route *s, const int *switches)
{
	for (uint8_t i = 0; i < s->n_members; i++) {
		uint8_t g = 0;

		while (g < s->n_groups && is_apart(switches, s->groups[g].member[0], i))
			g++;
		if (g == s->n_groups)
			s->n_groups++;
		s->groups[g].member[s->groups[g].n++] = i;
	}
}

/* Choose one root below each switch, so that no uplink carries the sums of two roots. */
static void roots_by_switch(struct route *s, const int *switches)
{
	for (uint8_t i = 0; i < s->n_members; i++) {
		uint8_t r = 0;

		while (r < s->n_roots && is_apart(switches, s->roots[r], i))
			r++;
		if (r == s->n_roots)
			s->roots[s->n_roots++] = i;
	}
}

static void use_cliques(struct route *s, enum route_up up, enum route_down down)
{
	s->up = up;
	s->down = down;
	s->chunk_bytes = ROUTE_CHUNK_BYTES;
}

int route_make(const char *name, unsigned n_members, const int *switches, struct route *ret,
	struct err_text *err)
{
	struct route s = {.n_members = (uint8_t)n_members};

	if (n_members < 1 || n_members > DEVICE_GPUS_MAX)
		return err_set(err, -EINVAL, "%u members (1 to %d)", n_members, DEVICE_GPUS_MAX);
	if (!*name || !strcmp(name, "auto"))
		name = n_members == 1 ? "copy" : "ce";
	if (n_members == 1)
		name = "copy";
	snprintf(s.name, sizeof(s.name), "%s", name);
	if (!strcmp(name, "copy")) {
		groups_of_one(&s);
		s.down = DOWN_COPY;
	} else if (!strcmp(name, "ce")) {
		groups_of_one(&s);
		s.down = DOWN_PEER;
	} else if (!strcmp(name, "rs_ag")) {
		one_group(&s);
		use_cliques(&s, UP_SCATTER, DOWN_GATHER);
	} else if (!strcmp(name, "switch_sum")) {
		groups_by_switch(&s, switches);
		use_cliques(&s, UP_SCATTER, DOWN_GATHER);
	} else if (!strcmp(name, "roots")) {
		one_group(&s);
		roots_by_switch(&s, switches);
		use_cliques(&s, UP_REDUCE, DOWN_BCAST);
	} else {
		return err_set(err, -EINVAL,
			"'%s' is not a route; use one of: copy, ce, rs_ag, switch_sum, "
			"roots",
			name);
	}
	*ret = s;
	return 0;
}
