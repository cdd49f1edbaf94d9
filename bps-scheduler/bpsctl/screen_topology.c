/* Shows the GPUs of an agent's machine for `bpsctl agent --topology`: which GPUs share a link to
 * the processor, and the route of their gradients. One thread. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bps-scheduler/bpsctl/screen.h"
#include "bps-scheduler/bpsctl/table_cells.h"

static json_t *topology_part_get(json_t *root, const char *key)
{
	return json_object_get(json_object_get(root, "topology"), key);
}

/* ---- the tree ---- */

static bool is_below_uplink(json_t *device, size_t uplink)
{
	json_t *v = json_object_get(device, "uplink");

	return uplink == SIZE_MAX
		       ? !json_is_integer(v)
		       : json_is_integer(v) && json_integer_value(v) == (json_int_t)uplink;
}

/* Write the device's NUMA node, if it is known. */
static void format_numa_node(json_t *device, char *ret, size_t room)
{
	json_int_t node = json_integer_value(json_object_get(device, "numa"));

	ret[0] = '\0';
	if (json_is_integer(json_object_get(device, "numa")) && node >= 0 && node < 1024)
		snprintf(ret, room, "  node %d", (int)node);
}

static void print_gpu_line(FILE *out, json_t *gpu, size_t i)
{
	char node[16];

	format_numa_node(gpu, node, sizeof(node));
	fprintf(out, "    GPU %-3zu %.19s%s%s%.40s%s\n", i, cell_str(gpu, "pci").s, node,
		json_string_length(json_object_get(gpu, "name")) ? "  " : "",
		json_string_length(json_object_get(gpu, "name")) ? cell_str(gpu, "name").s : "",
		json_is_true(json_object_get(gpu, "is_mig")) ? "  (part of a GPU)" : "");
}

static void print_nic_line(FILE *out, json_t *nic)
{
	bool is_up = json_is_true(json_object_get(nic, "is_up"));
	uint64_t mbps = cell_num(nic, "mbps");
	char node[16], speed[32] = "";

	format_numa_node(nic, node, sizeof(node));
	if (mbps)
		snprintf(speed, sizeof(speed), "  %.10g Gbit/s", (double)mbps / 1e3);
	fprintf(out, "    card    %.19s%s  %.31s%s%s\n", cell_str(nic, "pci").s, node,
		json_string_length(json_object_get(nic, "name")) ? cell_str(nic, "name").s
								 : "(no interface)",
		speed, is_up ? "" : "  down");
}

/* Print the devices below one uplink. uplink: SIZE_MAX for the devices without an uplink. head:
 * text to print before the first device. */
static void print_devices_below(FILE *out, json_t *root, size_t uplink, const char *head)
{
	json_t *v;
	size_t i;

	json_array_foreach (topology_part_get(root, "gpus"), i, v) {
		if (!is_below_uplink(v, uplink))
			continue;
		fputs(head, out);
		head = "";
		print_gpu_line(out, v, i);
	}
	json_array_foreach (topology_part_get(root, "nics"), i, v) {
		if (!is_below_uplink(v, uplink))
			continue;
		fputs(head, out);
		head = "";
		print_nic_line(out, v);
	}
}

static void print_uplink_tree(FILE *out, json_t *root)
{
	json_t *v;
	size_t i;

	json_array_foreach (topology_part_get(root, "uplinks"), i, v) {
		fprintf(out, "  uplink %.19s of %.19s%s\n", cell_str(v, "pci").s,
			cell_str(v, "bridge").s,
			json_is_true(json_object_get(v, "has_switch")) ? ", a switch" : "");
		print_devices_below(out, root, i, "");
	}
	print_devices_below(out, root, SIZE_MAX, "  without an uplink\n");
}

/* ---- NVLink ---- */

/* Write a list of GPU numbers as "0 1 2 3", or as "0-7" if the numbers are consecutive. */
static void format_gpu_numbers(json_t *list, char *ret, size_t room)
{
	size_t n = json_array_size(list), used = 0;

	ret[0] = '\0';
	for (size_t i = 0; i < n && used < room; i++) {
		json_int_t first = json_integer_value(json_array_get(list, i)), last = first;

		while (i + 1 < n && json_integer_value(json_array_get(list, i + 1)) == last + 1) {
			last++;
			i++;
		}
		used += (size_t)snprintf(ret + used, room - used,
			last > first ? "%s%" JSON_INTEGER_FORMAT "-%" JSON_INTEGER_FORMAT
				     : "%s%" JSON_INTEGER_FORMAT,
			used ? " " : "", first, last);
	}
}

static bool has_links_between_all(json_t *root)
{
	size_t n = json_array_size(topology_part_get(root, "gpus")), i;
	json_t *gpu;

	json_array_foreach (topology_part_get(root, "gpus"), i, gpu) {
		if (json_array_size(json_object_get(gpu, "links")) + 1 != n)
			return false;
	}
	return n > 1;
}

static void print_nvlink_lines(FILE *out, json_t *root)
{
	json_t *topology = json_object_get(root, "topology"), *gpu;
	bool is_asked = !cell_is(topology, "source", "sysfs");
	char to[300], text[400];
	size_t i;

	if (json_array_size(topology_part_get(root, "gpus")) < 2)
		return;
	if (has_links_between_all(root))
		cell_wrapped(out, "  NVLink: ",
			is_asked ? "all GPUs" : "all GPUs, since there are NVSwitches");
	else if (!is_asked)
		cell_wrapped(out,
			"  NVLink: ", "none is assumed, since only the CUDA driver reports it");
	if (has_links_between_all(root) || !is_asked)
		return;
	json_array_foreach (topology_part_get(root, "gpus"), i, gpu) {
		format_gpu_numbers(json_object_get(gpu, "links"), to, sizeof(to));
		snprintf(text, sizeof(text), "GPU %zu to %s", i, to);
		if (*to)
			cell_wrapped(out, "  NVLink: ", text);
	}
}

/* ---- the strategy ---- */

/* Write the groups of GPUs of the strategy, as "0-3, 4-7". */
static void format_gpu_groups(json_t *strategy, char *ret, size_t room)
{
	json_t *group;
	size_t i, used = 0;
	char text[300];

	ret[0] = '\0';
	json_array_foreach (json_object_get(strategy, "groups"), i, group) {
		format_gpu_numbers(group, text, sizeof(text));
		if (used < room)
			used += (size_t)snprintf(
				ret + used, room - used, "%s%s", used ? ", " : "", text);
	}
}

/* Show, in their order, the steps by which the strategy sums gradients. Consecutive steps of the
 * same kind share one line. */
static void print_strategy_steps(FILE *out, json_t *strategy)
{
	uint64_t units = cell_num(strategy, "units"), sources = cell_num(strategy, "sources");
	json_t *all = json_object_get(strategy, "steps"), *s;
	char groups[400], head[40], text[600];
	const char *last = "";
	size_t i;

	format_gpu_groups(strategy, groups, sizeof(groups));
	json_array_foreach (all, i, s) {
		const char *op = json_string_value(json_object_get(s, "op"));

		if (!op || strcmp(op, last) == 0)
			continue;
		last = op;
		if (strstr(op, "copy-"))
			snprintf(text, sizeof(text),
				"%s, between its memory and host memory at its processor",
				cell_num(s, "units") == units ? "each GPU copies all values"
							      : "each GPU copies its share");
		else if (strcmp(op, "sum") == 0)
			snprintf(text, sizeof(text), "the processor adds %" PRIu64 " pieces",
				sources);
		else if (strcmp(op, "peer-copy") == 0)
			snprintf(text, sizeof(text),
				"each GPU copies the other shares from the other GPUs");
		else
			snprintf(text, sizeof(text), "GPUs %s", groups);
		snprintf(head, sizeof(head), "    %-15.20s ", op);
		cell_wrapped(out, head, text);
	}
	if (cell_num(strategy, "turns") > 1)
		fprintf(out, "    %" PRIu64 " GPUs take turns, from tensor to tensor\n",
			cell_num(strategy, "turns"));
}

static void print_gpu_strategy(FILE *out, json_t *root)
{
	json_t *s = topology_part_get(root, "strategy");
	char text[300];

	if (!json_is_object(s))
		return;
	snprintf(text, sizeof(text), "%.20s%s, since %.210s", cell_str(s, "name").s,
		json_is_true(json_object_get(s, "is_forced")) ? " (forced)" : "",
		json_string_value(json_object_get(s, "why"))
			? json_string_value(json_object_get(s, "why"))
			: "-");
	cell_wrapped(out, "  strategy: ", text);
	print_strategy_steps(out, s);
}

int screen_topology(FILE *out, json_t *root)
{
	json_t *topology = json_object_get(root, "topology");
	const char *error = json_string_value(json_object_get(topology, "error"));
	uint64_t odd = cell_num(topology, "odd");
	char text[200];

	snprintf(text, sizeof(text), "%.63s on %.63s: %zu GPUs, %zu cards (from %.10s)",
		cell_str(root, "name").s, cell_str(root, "host").s,
		json_array_size(topology_part_get(root, "gpus")),
		json_array_size(topology_part_get(root, "nics")),
		json_is_string(json_object_get(topology, "source")) ? cell_str(topology, "source").s
								    : "-");
	cell_wrapped(out, "bps-agent ", text);
	print_uplink_tree(out, root);
	print_nvlink_lines(out, root);
	print_gpu_strategy(out, root);
	if (odd)
		fprintf(out, "  ! %" PRIu64 " devices or attributes are invalid and left out\n",
			odd);
	cell_wrapped_key(out, "  executor: ", topology, "executor");
	if (error)
		cell_wrapped(out, "  ! ", error);
	return error ? 1 : 0;
}
