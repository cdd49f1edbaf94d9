#include "bps-scheduler/bpsctl/paths/path_text.h"

#include <stdio.h>
#include <string.h>

static void __attribute__((format(printf, 3, 4)))
fill(struct path_text *ret, const char *action, const char *fmt, ...)
{
	format_arguments(ret->what, fmt);
	snprintf(ret->action, sizeof(ret->action), "%s", action);
}

static void describe_path_drop(
	const struct checked_path *p, const char *where, struct path_text *ret)
{
	char action[sizeof(ret->action)];

	snprintf(action, sizeof(action),
		"check the MTU of the network cards of both hosts (ip link) and of all switches "
		"and tunnels between them: `tracepath -n %.64s` shows it; a firewall must let ICMP "
		"messages of the type 'fragmentation needed' pass",
		p->addr.host);
	fill(ret, action,
		"small messages pass, but a message of %zu KiB to %s got no answer within %.1f s: "
		"large packets %s it are dropped",
		p->n_bytes >> 10, where, PATHS_LIMIT_MS / 1e3,
		p->result == PATH_DROPS_SENT ? "to" : "from");
}

void path_describe(const struct checked_path *p, struct path_text *ret)
{
	char where[ADDR_TEXT_BYTES];

	addr_format(&p->addr, where);
	if (p->result == PATH_PASSES)
		fill(ret, "", "passes %zu KiB %s, %s", p->n_bytes >> 10,
			p->is_control ? "to it" : "in both directions", where);
	else if (p->result == PATH_UNSUPPORTED)
		fill(ret, "", "%s accepts connections; its release cannot answer a large message",
			where);
	else if (p->result == PATH_UNREACHABLE)
		fill(ret, "check the network and the firewall", "the connection to %s failed: %s",
			where, strerror(p->error));
	else if (p->result == PATH_NOT_MEASURED)
		fill(ret, "allow TLS 1.3 and the group P-256 in openssl.cnf (`openssl version -d`)",
			"cannot measure the path to %s: OpenSSL makes no TLS 1.3 message with "
			"P-256",
			where);
	else if (p->result == PATH_SILENT || (p->is_control && p->result == PATH_DROPS_ANSWER))
		/* a scheduler that hangs acknowledges a message, too; its answer is small */
		fill(ret, "check the network and the firewall; see the log of the daemon there",
			"%s does not answer within %.1f s", where, PATHS_LIMIT_MS / 1e3);
	else
		describe_path_drop(p, where, ret);
}
