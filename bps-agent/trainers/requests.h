#ifndef BPS_AGENT_TRAINERS_REQUESTS_H
#define BPS_AGENT_TRAINERS_REQUESTS_H
/* Dispatches the messages of trainers (struct trainer_events). Thread: the data thread. */
#include "bps-agent/model/trainer.h"

extern const struct trainer_events trainer_events;
#endif
