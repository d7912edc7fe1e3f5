/* sha256.h - SHA-256 (FIPS 180-4): names that nobody can choose twice. For what is not chosen by
 * others hash.h is much faster. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

void sha256(const void *bytes, size_t n, uint8_t out[32]); /* bytes may be NULL when n is 0 */

#endif
