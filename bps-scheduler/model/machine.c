#include "bps-scheduler/model/machine.h"

#include <stdio.h>
#include <string.h>

#include "bps-scheduler/model/model.h"

static const uint8_t unknown_id[CTL_BOOT_ID_BYTES];

static const uint8_t *boot_id_known_or_null(const uint8_t *boot_id)
{
	return memcmp(boot_id, unknown_id, sizeof(unknown_id)) ? boot_id : NULL;
}

struct machine machine_of_member(const struct sched_member *m)
{
	return (struct machine){m->host, m->domain, boot_id_known_or_null(m->boot_id)};
}

struct machine machine_of_hello(const struct ctl_hello *h)
{
	bool has_id = h->boot_id.bytes == CTL_BOOT_ID_BYTES;

	return (struct machine){h->host, h->domain ? h->domain : "",
		has_id ? boot_id_known_or_null(h->boot_id.data) : NULL};
}

bool machine_is_same(const struct machine *a, const struct machine *b)
{
	if (strcmp(a->host, b->host) != 0)
		return false;
	if (*a->domain && *b->domain && strcmp(a->domain, b->domain) != 0)
		return false;
	return !a->boot_id || !b->boot_id || memcmp(a->boot_id, b->boot_id, CTL_BOOT_ID_BYTES) == 0;
}

void machine_format_place(
	const struct machine *m, const char *addr, uint16_t port, char ret[MACHINE_PLACE_BYTES])
{
	const char *dot = *m->domain ? "." : "";

	if (!*addr)
		snprintf(ret, MACHINE_PLACE_BYTES, "%s%s%s", m->host, dot, m->domain);
	else if (!port)
		snprintf(ret, MACHINE_PLACE_BYTES, "%s%s%s at %s", m->host, dot, m->domain, addr);
	else
		snprintf(ret, MACHINE_PLACE_BYTES,
			strchr(addr, ':') ? "%s%s%s at [%s]:%u" : "%s%s%s at %s:%u", m->host, dot,
			m->domain, addr, port);
}

bool machine_rival_note(struct sched_member *m, const struct ctl_hello *h, uint64_t now_ns)
{
	struct machine machine = machine_of_hello(h);
	bool is_first = !machine_recent_rival(m, now_ns);

	if (!m->rival)
		m->rival = sched_alloc(1, sizeof(*m->rival));
	m->rival->at_ns = now_ns;
	m->rival->pid = h->pid;
	machine_format_place(&machine, h->addr, h->port, m->rival->place);
	return is_first;
}

const struct machine_rival *machine_recent_rival(const struct sched_member *m, uint64_t now_ns)
{
	return m->rival && now_ns < m->rival->at_ns + MACHINE_RIVAL_NS ? m->rival : NULL;
}
