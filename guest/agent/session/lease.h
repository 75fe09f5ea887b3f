/* How long the sandbox may go on without a word of its host. */
#ifndef RINGFENCE_LEASE_H
#define RINGFENCE_LEASE_H

#include "common/common.h"

/* Ends the sandbox after so many milliseconds unless this is called again; 0 ends the lease and not the sandbox. */
void lease_renew(uint32_t ms);

#endif
