#ifndef BPS_SCHEDULER_BPSCTL_ADVICE_ADVICE_H
#define BPS_SCHEDULER_BPSCTL_ADVICE_ADVICE_H
/* Says what would make the steps of a job shorter, and by how much. The functions only compare
 * figures of two documents, and change nothing. */
#include <jansson.h>

/* Return the findings about a job, as a new reference: HANG comes first, then the one with the
 * largest gain. NULL: out of memory. The document has the fields
 *   job, steps     those of the job's document
 *   exposed_min_s exposed_max_s
 *                  range of the machines' exposed times in a step
 *   findings[code text next gain_s]
 *                  text: what takes time; next: what to do; gain_s: seconds per step that this may
 *                  save, null: not known
 * job: the job's document, see docs/reference/status.schema.json. cluster: the cluster's document,
 * of the same moment. */
json_t *advice_about_job(json_t *job, json_t *cluster);
#endif
