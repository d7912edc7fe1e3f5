/* check.h - whether an op's operands fit together; used by build.c alone. */
#ifndef PLAN_CHECK_H
#define PLAN_CHECK_H

#include "plan/plan.h"

/* An error names the op, the operand, what it is and what it should be. */
int op_check(const struct plan *plan, const struct op *op, struct err *err);

#endif
