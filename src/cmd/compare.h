/* compare.h - two backends side by side, op by op. */
#ifndef CMD_COMPARE_H
#define CMD_COMPARE_H

#include "cmd/open.h"

/* One step of each engine; their sequences are at the same point with the same rows waiting. After
 * every op the results are compared, and the first engine's are copied to the second: so each line
 * is that op's own divergence. Prints a line an op; returns the exit status. */
int compare_step(sluice_engine *one, sluice_engine *other, bool as_json);

#endif
