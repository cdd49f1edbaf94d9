/* Warnings about environment variables of BytePS and Horovod, similar services, that have an effect
 * there and none here. A user who sets one of them expects the effect. Thread: any. */
#ifndef BPS_IGNORED_H
#define BPS_IGNORED_H

/* Print a warning on stderr for each of these variables that is set. The warning names the variable
 * and an alternative. */
void ignored_variables_warn(void);

#endif
