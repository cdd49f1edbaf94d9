/* Checks this host's daemons for `bpsctl check`: programs, settings, keys, ports, and the
 * scheduler's answers. check_host.c checks the machine. The functions of this file change nothing,
 * and block for a limited time. One thread. */
#include "bps-scheduler/bpsctl/checks.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bps-scheduler/bpsctl/bpsctl.h"
#include "bps-scheduler/bpsctl/http.h"
#include "bps-scheduler/bpsctl/paths/path_text.h"
#include "bps-scheduler/bpsctl/paths/paths.h"
#include "bps-scheduler/bpsctl/subprocess.h"
#include "bps-scheduler/bpsctl/table_cells.h"
#include "common/base/log.h"
#include "common/base/nicspeed.h"
#include "common/base/rdma_port.h"
#include "common/base/version.h"
#include "common/control/keyring.h"
#include "common/os/machine.h"

/* Time limits of single steps. Their sum is less than the two seconds that a command of bpsctl may
 * take. path_list_measure then has a limit of its own. */
#define CHILDREN_MS 600
/* DAEMON_MS: limit for each answer of a daemon's HTTP port and for each connection to a control
 * port, in milliseconds. There are at most three answers and two connections. SCHEDULER_MS: limit
 * for the scheduler's answer with the status of the cluster. */
#define DAEMON_MS    150
#define SCHEDULER_MS 350

static const char *const level_names[] = {"ok", "warn", "bad"};

void check_result_append(json_t *list, enum check_level level, const char *name, const char *action,
	const char *fmt, ...)
{
	char what[512], todo[512];

	format_arguments(what, fmt);
	log_replace_unprintable(what);
	snprintf(todo, sizeof(todo), "%s", action);
	log_replace_unprintable(todo);
	json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s}", "name", name, "state",
					    level_names[level], "what", what, "action", todo));
}

/* ---- our daemons on this host ---- */

struct checked_daemon {
	/* name: name of the settings file without ".conf"; key_file: name of the key file. Both
	 * files are in the settings folder, from which the systemd units load them. */
	const char *name, *key_file;
	/* default ports of the settings `listen` and `http`; 0: the setting is not checked */
	uint16_t port, http_port;
	/* whether the daemon has a settings file; if so, this host should run the daemon */
	bool has_file;
	char program[512], file[512],
		conf[SUBPROCESS_TEXT_BYTES]; /* conf: output of the daemon's --print-config */
	bool is_valid, is_running;
	int pid;
};

/* Find the daemon's program, starting from the folder of bpsctl. Search the places of a build tree
 * first, then those of an installation. */
static bool find_daemon_program(struct checked_daemon *r)
{
	struct stat st;
	char self[256], places[3][128];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[n > 0 ? n : 0] = '\0';
	if (strrchr(self, '/'))
		*strrchr(self, '/') = '\0';
	snprintf(places[0], sizeof(places[0]), "bps-%s/bps-%s", r->name, r->name);
	snprintf(places[1], sizeof(places[1]), "../sbin/bps-%s", r->name);
	snprintf(places[2], sizeof(places[2]), "bps-%s", r->name);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(r->program, sizeof(r->program), "%s/%.120s", self, places[i]);
		/* A folder of the build may have the same name as the program. */
		if (stat(r->program, &st) == 0 && S_ISREG(st.st_mode) &&
			access(r->program, X_OK) == 0)
			return true;
	}
	return false;
}

/* Get the value of a setting from the output of the daemon's --print-config; "" if it is not
 * set. */
static void conf_get_setting(
	const struct checked_daemon *r, const char *name, char *ret, size_t room)
{
	const char *line = r->conf;
	size_t n = strlen(name);

	ret[0] = '\0';
	for (; line && *line; line = strchr(line, '\n'), line += line != NULL) {
		const char *value = line + n + 3, *end;

		if (strncmp(line, name, n) != 0 || strncmp(line + n, " = ", 3) != 0)
			continue;
		end = strstr(value, " ;");
		if (end)
			snprintf(ret, room, "%.*s", (int)(end - value), value);
		return;
	}
}

/* Return the last line of a daemon's output, which states what is wrong in its settings. */
static const char *output_last_line(char *text)
{
	char *line = text + strlen(text);

	while (line > text && line[-1] == '\n')
		*--line = '\0';
	while (line > text && line[-1] != '\n')
		line--;
	return *line == '<' && strchr(line, '>') ? strchr(line, '>') + 1 : line;
}

static void check_settings_result(json_t *list, struct checked_daemon *r, struct subprocess *c)
{
	char name[32];

	snprintf(name, sizeof(name), "%s settings", r->name);
	r->is_valid = c->status >= 0 && WIFEXITED(c->status) && WEXITSTATUS(c->status) == 0;
	if (r->is_valid) {
		snprintf(r->conf, sizeof(r->conf), "%s", c->text);
		check_result_append(
			list, CHECK_OK, name, "", "%s", r->has_file ? r->file : "the defaults");
	} else if (c->status < 0) {
		check_result_append(list, CHECK_WARN, name, "run bps-DAEMON --check-config",
			"bps-%s did not check its settings: %s", r->name, strerror(-c->status));
	} else {
		check_result_append(list, CHECK_BAD, name,
			"correct the settings; bps-DAEMON --check-config reports the details", "%s",
			output_last_line(c->text));
	}
}

static void check_settings(json_t *list, struct checked_daemon *roles, size_t n)
{
	struct subprocess *children = calloc(n, sizeof(*children));
	size_t at[8], n_run = 0;

	for (size_t i = 0; children && i < n; i++) {
		struct checked_daemon *r = &roles[i];
		struct subprocess *c = &children[n_run];

		if (!find_daemon_program(r)) {
			if (r->has_file)
				check_result_append(list, CHECK_WARN, r->name,
					"install the program",
					"%s exists, but there is no program bps-%s", r->file,
					r->name);
			continue;
		}
		c->argv[0] = r->program;
		c->argv[1] = "--print-config";
		c->argv[2] = r->has_file ? "--config" : NULL;
		c->argv[3] = r->file;
		at[n_run++] = i;
	}
	if (children)
		subprocess_run_all(children, n_run, CHILDREN_MS);
	for (size_t k = 0; k < n_run; k++)
		check_settings_result(list, &roles[at[k]], &children[k]);
	free(children);
}

/* ---- ports ---- */

/* Try to bind the address. Returns 0 or -errno. */
static int address_try_bind(const struct addr *a)
{
	struct sockaddr_storage sa;
	socklen_t len;
	int on = 1, fd, rc = addr_resolve_numeric(a, &sa, &len);

	if (rc < 0)
		return rc;
	fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	rc = bind(fd, (struct sockaddr *)&sa, len) < 0 || listen(fd, 1) < 0 ? -errno : 0;
	close(fd);
	return rc;
}

static void check_listen_port(
	json_t *list, const struct checked_daemon *r, const char *setting, uint16_t port)
{
	char text[ADDR_TEXT_BYTES], name[48];
	struct err_text err = {""};
	struct addr a;
	int rc;

	conf_get_setting(r, setting, text, sizeof(text));
	snprintf(name, sizeof(name), "%s %s", r->name, setting);
	if (addr_parse(&a, text, port, &err) < 0 || !a.port)
		/* nothing to check: the daemon binds to any free port or rejects the address */
		return;
	rc = address_try_bind(&a);
	if (rc == -EADDRINUSE && r->is_running)
		check_result_append(list, CHECK_OK, name, "", "%s is used by the running bps-%s",
			text, r->name);
	else if (rc == -EADDRINUSE)
		check_result_append(list, CHECK_BAD, name,
			"`ss -ltnp` shows the program: stop it, or choose another port",
			"%s is used by another program", text);
	else if (rc < 0)
		check_result_append(list, CHECK_BAD, name, "set an address of this host", "%s: %s",
			text, strerror(-rc));
	else if (r->is_running)
		check_result_append(list, CHECK_WARN, name,
			"restart the daemon, or set the address with which it was started",
			"%s is free: the running bps-%s listens on another address", text, r->name);
	else
		check_result_append(list, CHECK_OK, name, "", "%s is free: bps-%s is not running",
			text, r->name);
}

/* Note the servers in the status of the running agent. Only the provider sockets answers path
 * probes. */
static void path_list_add_servers(
	json_t *root, const struct checked_daemon *agent, struct path_list *paths)
{
	char text[ADDR_TEXT_BYTES], name[48];
	struct sockaddr_storage sa;
	struct err_text err;
	struct addr a;
	socklen_t len;
	json_t *s;
	size_t i;

	if (!cell_is(root, "provider", "sockets"))
		return;
	conf_get_setting(agent, "listen", text, sizeof(text));
	if (addr_parse(&a, text, 1, &err) == 0 && strcmp(a.host, "*") != 0)
		memcpy(paths->from, a.host, sizeof(paths->from));
	json_array_foreach (json_object_get(root, "servers"), i, s) {
		a.port = (uint16_t)cell_num(s, "port");
		snprintf(a.host, sizeof(a.host), "%s", cell_str(s, "addr").s);
		snprintf(name, sizeof(name), "server %.40s", cell_str(s, "name").s);
		if (addr_resolve_numeric(&a, &sa, &len) == 0)
			path_list_add(paths, name, &a, &sa, len, false);
	}
}

/* Check whether the daemon of this role answers on its HTTP port. */
static void check_daemon_answers(json_t *list, struct checked_daemon *r, struct path_list *paths)
{
	struct http_get g = {.path = "/status"};
	char text[ADDR_TEXT_BYTES], name[48], role[16];
	struct err_text err = {""};
	struct addr a;

	conf_get_setting(r, "http", text, sizeof(text));
	if (addr_parse(&a, text, r->http_port, &err) < 0 || !a.port)
		return;
	if (strcmp(a.host, "*") == 0)
		snprintf(a.host, sizeof(a.host), "127.0.0.1");
	http_get_all(&a, &g, 1, DAEMON_MS);
	snprintf(role, sizeof(role), "%s", r->name);
	snprintf(name, sizeof(name), "%s daemon", r->name);
	if (g.rc == BPS_ETIMEDOUT) {
		r->is_running = true;
		check_result_append(list, CHECK_BAD, name,
			"restart the daemon; its log and /livez report the reason",
			"a program accepts connections on %s, but does not answer within %d ms",
			text, DAEMON_MS);
	} else if (g.rc == 0 && cell_is(g.root, "role", role)) {
		r->is_running = true;
		r->pid = (int)cell_num(g.root, "pid");
		path_list_add_servers(g.root, r, paths);
		if (cell_is(g.root, "role", "agent"))
			check_cards(list, g.root);
		if (json_is_false(json_object_get(g.root, "scheduler_up")))
			check_result_append(list, CHECK_WARN, name,
				"see the daemon's log: its key or address may be wrong, a firewall "
				"may block it, or no scheduler runs",
				"runs, but has no connection to the scheduler");
		else if (cell_is(g.root, "version", BPS_VERSION))
			check_result_append(list, CHECK_OK, name, "", "runs, release " BPS_VERSION);
		else
			check_result_append(list, CHECK_WARN, name,
				"restart the daemon after the upgrade",
				"runs release %.32s, but this bpsctl is of release " BPS_VERSION,
				cell_str(g.root, "version").s);
	}
	json_decref(g.root);
}

/* ---- keys ---- */

static void check_daemon_key(json_t *list, const struct checked_daemon *r, const char *config_dir)
{
	char path[512], name[48];
	struct err_text err = {""};
	struct keyring ring;
	int rc;

	conf_get_setting(r, "key-file", path, sizeof(path));
	if (!*path)
		snprintf(path, sizeof(path), "%.400s/%s", config_dir, r->key_file);
	snprintf(name, sizeof(name), "%s key", r->name);
	if (access(path, F_OK) < 0) {
		check_result_append(list, CHECK_WARN, name,
			"create the cluster's key with `bpsctl key new`, or this host's with "
			"`bpsctl key derive`",
			"there is no %s, so the daemon uses loopback only", path);
		return;
	}
	rc = keyring_load(&ring, path, &err);
	if (rc > 0)
		check_result_append(list, CHECK_OK, name, "", "%s", path);
	else if (rc == -EACCES)
		check_result_append(list, CHECK_WARN, name, "run this check as root",
			"this user may not read %s", path);
	else
		check_result_append(list, CHECK_BAD, name,
			"chmod 600 and chown the file, or create a new key", "%s",
			*err.s ? err.s : path);
	if (rc > 0)
		keyring_wipe(&ring);
}

/* ---- the scheduler ---- */

/* Add a line about the members whose release differs from this bpsctl's. */
static void check_versions(json_t *list, json_t *root)
{
	char others[256] = "";
	unsigned n = 0;
	json_t *m;
	size_t i;

	json_array_foreach (json_object_get(root, "members"), i, m) {
		size_t used = strlen(others);

		if (!cell_is(m, "state", "up") || cell_is(m, "version", BPS_VERSION))
			continue;
		if (n++ < 4)
			snprintf(others + used, sizeof(others) - used, "%s%.24s: %.16s",
				n > 1 ? ", " : "", cell_str(m, "name").s, cell_str(m, "version").s);
	}
	if (n)
		check_result_append(list, CHECK_WARN, "releases",
			"upgrade the scheduler, then servers, then agents",
			"%u daemons do not run release " BPS_VERSION " (%s%s)", n, others,
			n > 4 ? ", ..." : "");
	else
		check_result_append(list, CHECK_OK, "releases", "",
			"all connected daemons run release " BPS_VERSION);
}

/* Add a line about each host name that two machines have. */
static void check_host_names(json_t *list, json_t *root)
{
	bool is_found = false;
	json_t *p;
	size_t i;

	json_array_foreach (json_object_get(root, "problems"), i, p) {
		/* too long for a table_cell */
		const char *what = json_string_value(json_object_get(p, "what"));

		if (!cell_is(p, "code", "HOST_DUPLICATE") || !what)
			continue;
		is_found = true;
		check_result_append(
			list, CHECK_BAD, "host names", cell_str(p, "action").s, "%s", what);
	}
	if (!is_found)
		check_result_append(list, CHECK_OK, "host names", "",
			"the scheduler sees no two machines with one host name");
}

static bool is_loopback_addr(const struct addr *a)
{
	struct sockaddr_storage sa;
	socklen_t len;

	return addr_resolve_numeric(a, &sa, &len) == 0 &&
	       sockaddr_is_loopback((struct sockaddr *)&sa);
}

/* Return whether the scheduler runs on another host. The function returns true if the settings of a
 * daemon name a remote scheduler, and no scheduler is set up or runs on this host. The scheduler's
 * HTTP port listens on the loopback address of that other host, so this host cannot check the port.
 * This host has already checked the scheduler's control port. */
static bool is_scheduler_remote(
	const struct checked_daemon *roles, size_t n, const struct addr *http)
{
	char text[ADDR_TEXT_BYTES];
	struct err_text err;
	struct addr a;

	if (!is_loopback_addr(http) || roles[0].has_file || roles[0].is_running)
		return false;
	for (size_t i = 1; i < n; i++) {
		conf_get_setting(&roles[i], "scheduler", text, sizeof(text));
		if (roles[i].has_file && addr_parse(&a, text, 7300, &err) == 0 &&
			!is_loopback_addr(&a))
			return true;
	}
	return false;
}

/* Get the address that the scheduler's settings give to its HTTP port. */
static void conf_get_scheduler_http(const struct checked_daemon *scheduler, struct addr *ret)
{
	char text[ADDR_TEXT_BYTES];
	struct err_text err;

	conf_get_setting(scheduler, "http", text, sizeof(text));
	if (addr_parse(ret, text, scheduler->http_port, &err) < 0)
		*ret = (struct addr){.host = "127.0.0.1", .port = scheduler->http_port};
}

/* given: the address to ask; NULL: the address in the scheduler's settings. */
static void check_scheduler_answers(
	json_t *list, const struct checked_daemon *roles, size_t n_roles, const struct addr *given)
{
	struct http_get g = {.path = "/status"};
	char text[ADDR_TEXT_BYTES];
	struct addr of_settings;
	const struct addr *http = given;

	if (!given) {
		conf_get_scheduler_http(&roles[0], &of_settings);
		http = &of_settings;
	}

	if (is_scheduler_remote(roles, n_roles, http)) {
		check_result_append(list, CHECK_OK, "scheduler", "",
			"runs on another host; `bpsctl status` there shows the cluster");
		return;
	}
	http_get_all(http, &g, 1, SCHEDULER_MS);
	addr_format(http, text);
	if (g.rc < 0 || !cell_is(g.root, "role", "scheduler")) {
		check_result_append(list, CHECK_BAD, "scheduler",
			"start bps-scheduler, or set its address with --scheduler-http", "%s",
			g.rc < 0 ? g.err.s : "the daemon that answers is not a scheduler");
	} else {
		check_result_append(list, CHECK_OK, "scheduler", "",
			"answers at %s, release %.32s, health %.8s", text,
			cell_str(g.root, "version").s, cell_str(g.root, "health").s);
		check_versions(list, g.root);
		check_host_names(list, g.root);
	}
	json_decref(g.root);
}

/* Check that the control port in a daemon's setting `scheduler` accepts connections. */
static void check_control_port(
	json_t *list, const struct checked_daemon *r, struct path_list *paths)
{
	char text[ADDR_TEXT_BYTES], name[48];
	struct err_text err = {""};
	struct sockaddr_storage sa;
	struct addr a;
	socklen_t len;
	int rc;

	conf_get_setting(r, "scheduler", text, sizeof(text));
	if (!r->has_file || addr_parse(&a, text, 7300, &err) < 0)
		return;
	snprintf(name, sizeof(name), "%s's scheduler", r->name);
	rc = http_can_connect(&a, DAEMON_MS, &sa, &len, &err);
	if (rc < 0)
		check_result_append(list, CHECK_BAD, name,
			"check --scheduler, the network and the firewall", "%s", err.s);
	else
		check_result_append(list, CHECK_OK, name, "", "%s accepts connections", text);
	if (rc == 0)
		path_list_add(paths, "scheduler", &a, &sa, len, true);
}

/* ---- paths ---- */

static enum check_level path_result_level(enum path_result result)
{
	if (result == PATH_PASSES || result == PATH_UNSUPPORTED)
		return CHECK_OK;
	return result == PATH_NOT_MEASURED ? CHECK_WARN : CHECK_BAD;
}

/* Measure the paths, under a new time limit of the program. */
static void measure_and_check_paths(json_t *list, struct path_list *paths)
{
	query_time_limit_set(true);
	path_list_measure(paths);
	if (paths->n_left_out)
		check_result_append(list, CHECK_OK, "paths", "", "measured %zu of %zu paths",
			paths->n, paths->n + paths->n_left_out);
	for (size_t i = 0; i < paths->n; i++) {
		const struct checked_path *p = &paths->paths[i];
		struct path_text text;
		char name[64];

		snprintf(name, sizeof(name), "path to %s", p->name);
		path_describe(p, &text);
		check_result_append(
			list, path_result_level(p->result), name, text.action, "%s", text.what);
	}
}

/* ---- all ---- */

static void checked_daemons_init(struct checked_daemon roles[3], const char *config_dir)
{
	static const struct checked_daemon models[3] = {
		{.name = "scheduler", .key_file = "cluster.key", .port = 7300, .http_port = 7301},
		{.name = "server", .key_file = "server.key", .port = 7302, .http_port = 7303},
		{.name = "agent", .key_file = "agent.key", .http_port = 7304}};

	for (size_t i = 0; i < 3; i++) {
		roles[i] = models[i];
		snprintf(roles[i].file, sizeof(roles[i].file), "%.400s/%s.conf", config_dir,
			roles[i].name);
		roles[i].has_file = access(roles[i].file, F_OK) == 0;
	}
}

/* Get the provider that the daemon's settings select, with "auto" resolved as the daemon would. */
static void conf_get_provider(const struct checked_daemon *r, char *ret, size_t room)
{
	char text[ADDR_TEXT_BYTES];
	struct err_text err;
	struct addr a;

	conf_get_setting(r, "provider", ret, room);
	if (strcmp(ret, "auto") != 0)
		return;
	conf_get_setting(r, "listen", text, sizeof(text));
	snprintf(ret, room, "%s",
		addr_parse(&a, text, r->port, &err) == 0 && rdma_port_has_address(NIC_SYSFS, a.host)
			? "verbs"
			: "sockets");
}

/* Check that the settings of the server and of the agent select the same provider. */
static void check_providers(json_t *list, const struct checked_daemon roles[3])
{
	const struct checked_daemon *server = &roles[1], *agent = &roles[2];
	char of_server[32], of_agent[32];

	if (!server->has_file || !agent->has_file || !server->is_valid || !agent->is_valid)
		return;
	conf_get_provider(server, of_server, sizeof(of_server));
	conf_get_provider(agent, of_agent, sizeof(of_agent));
	if (strcmp(of_server, of_agent) != 0)
		check_result_append(list, CHECK_BAD, "provider",
			"set the same provider on all servers and agents",
			"the server's settings select '%s', those of the agent '%s'", of_server,
			of_agent);
}

static void check_daemon_role(json_t *list, struct checked_daemon *r, const char *config_dir,
	struct host_needs *needs, struct path_list *paths)
{
	char provider[32];

	if (!r->is_valid)
		return;
	check_daemon_answers(list, r, paths);
	if (r->pid)
		needs->pid = r->pid;
	if (!r->has_file)
		/* without a settings file, the daemon is not meant to run on this host, or it was
		 * started with other settings */
		return;
	check_daemon_key(list, r, config_dir);
	conf_get_provider(r, provider, sizeof(provider));
	/* bind(2) cannot check an RDMA port. */
	if (r->port && strcmp(provider, "verbs") != 0)
		check_listen_port(list, r, "listen", r->port);
	check_listen_port(list, r, "http", r->http_port);
	check_control_port(list, r, paths);
	needs->has_verbs |= strcmp(provider, "verbs") == 0;
	needs->has_libfabric |= strcmp(provider, "verbs") == 0 || strcmp(provider, "tcp") == 0;
}

static void count_checks_by_level(json_t *root)
{
	json_t *c;
	size_t i;

	for (size_t k = 0; k < 3; k++) {
		json_int_t n = 0;

		json_array_foreach (json_object_get(root, "checks"), i, c)
			n += cell_is(c, "state", level_names[k]);
		json_object_set_new(root, level_names[k], json_integer(n));
	}
}

json_t *checks_run_all_json(const char *config_dir, const struct addr *scheduler_http)
{
	struct checked_daemon *roles = calloc(3, sizeof(*roles));
	struct path_list *paths = calloc(1, sizeof(*paths));
	json_t *list = json_array(), *root;
	struct host_needs needs = {.pid = 0};
	char host[MACHINE_NAME_BYTES], domain[MACHINE_NAME_BYTES];

	if (!roles || !paths) {
		json_decref(list);
		free(roles);
		free(paths);
		return NULL;
	}
	checked_daemons_init(roles, config_dir);
	check_settings(list, roles, 3);
	for (size_t i = 0; i < 3; i++)
		check_daemon_role(list, &roles[i], config_dir, &needs, paths);
	check_providers(list, roles);
	check_scheduler_answers(list, roles, 3, scheduler_http);
	measure_and_check_paths(list, paths);
	check_host(list, &needs);
	free(roles);
	free(paths);
	machine_host_name(host, domain);
	root = json_pack("{s:i, s:s, s:s, s:s, s:o}", "schema", 1, "host", host, "version",
		BPS_VERSION, "commit", bps_commit(), "checks", list);
	count_checks_by_level(root);
	return root;
}

int screen_check(FILE *out, json_t *root)
{
	json_t *c;
	size_t i;

	json_array_foreach (json_object_get(root, "checks"), i, c) {
		bool is_ok = cell_is(c, "state", "ok");
		char head[64];

		snprintf(head, sizeof(head), "%-4.4s  %-20.40s ", cell_str(c, "state").s,
			cell_str(c, "name").s);
		cell_wrapped_key(out, head, c, "what");
		if (!is_ok)
			cell_wrapped_key(out, "        do: ", c, "action");
	}
	fprintf(out, "%" PRIu64 " ok, %" PRIu64 " warnings, %" PRIu64 " bad\n",
		cell_num(root, "ok"), cell_num(root, "warn"), cell_num(root, "bad"));
	return cell_num(root, "bad") ? 2 : cell_num(root, "warn") ? 1 : 0;
}
