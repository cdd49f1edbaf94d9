#include "tests/unit/fabric_pair.h"

#include <string.h>

struct fabric_conn *fabric_conn_of(const struct net_node *n)
{
	return (struct fabric_conn *)n->conn;
}

bool fabric_has_eager(const struct net_node *n)
{
	return ((const struct fabric *)n->f)->gates.has_eager;
}

static unsigned n_requests(const struct net_node *n)
{
	const struct fabric_conn *c = fabric_conn_of(n);

	return c->n_rops + c->reads.n_queued;
}

void fabric_pair_connect(struct offer_pair *p, size_t bytes)
{
	memset(takers, 0, sizeof(takers));
	rig_connect(&p->r);
	p->from = mem_new(&p->r.server, bytes, 11);
	p->t = &takers[0];
	p->t->to = mem_new(&p->r.client, bytes, 0);
}

void fabric_pair_open(struct offer_pair *p, size_t bytes)
{
	const struct net_node *server = &p->r.server, *client = &p->r.client;

	net_rig_open(&p->r);
	fabric_pair_connect(p, bytes);
	assert_int_equal(fabric_conn_of(server)->is_eager, fabric_has_eager(server));
	assert_int_equal(fabric_conn_of(client)->is_eager, fabric_has_eager(client));
	/* The first offer is sent with its bytes. */
	if (fabric_has_eager(server))
		assert_true(fabric_conn_of(server)->is_linked);
}

void fabric_pair_close(struct offer_pair *p)
{
	assert_false(p->r.client.is_wrong);
	net_rig_close(&p->r);
	mem_free(&p->from);
	mem_free(&p->t->to);
}

int fabric_pair_use_tcp(void **state)
{
	(void)state;
	rig_use("tcp");
	taker_requests = n_requests;
	return 0;
}
