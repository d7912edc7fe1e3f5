/* log_sum.h - the logarithm of a sum of exponentials. */
#ifndef BASE_LOG_SUM_H
#define BASE_LOG_SUM_H

#include <math.h>
#include <stdint.h>

/* log(sum(exp(x[i]))) of n > 0 values; log1p keeps what the largest outweighs by far. */
static inline double log_sum_exp(const float *x, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    double others = 0;
    for (int32_t i = 0; i < n; i++)
        others += i == best ? 0 : (double)expf(x[i] - x[best]);
    return log1p(others) + (double)x[best];
}

#endif
